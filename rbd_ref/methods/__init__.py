"""The methods: what each worker measures, what it sends, and what every replica does with all that was sent.

    sgd    theta <- theta - eta_t g
    rbd    theta <- theta - eta_t sum_i c_i phi_i / |phi_i|,   c_i = <phi_i, g> / |phi_i|,   phi redrawn at every step
    fpd    theta  = theta0 + sum_i c_i phi_i / |phi_i|,      c descends its own gradient,  phi drawn once
    nes    as rbd, but c_i from losses alone: c_i = L(theta + sigma phi_i / |phi_i|) / (sigma d)

Read rbd.py first: it is the paper's Algorithm 1. Around it:

    base          what a method is: `Method`, `Proposal`, `PendingUpdate`, and `Replica`, a method with its state
    settings      what a method can be told beside the basis
    sharing       how the workers' bases relate: independent, shared or split
    state         weights and velocity, and how an update moves them
    codes         coefficients in fewer bits
    transforms    small functions of coordinates
    memory        what a worker of rbd keeps of its gradients and projects in their place: beyond the paper
    rates         the learning rate as a function of the step
    phases        which method is used at which step
    sgd, rbd, fpd, nes    a method each

A step is: propose (each worker, by itself) -> allgather -> collect and apply_update (everyone, the same bits).
May import: basis, spec.
"""

from rbd_ref._check import member
from rbd_ref.basis import Basis
from rbd_ref.methods.base import State
from rbd_ref.methods.fpd import FixedProjectionDescent
from rbd_ref.methods.nes import EvolutionStrategies
from rbd_ref.methods.phases import Phase
from rbd_ref.methods.rbd import RandomBasesDescent
from rbd_ref.methods.settings import Settings
from rbd_ref.methods.sgd import StochasticGradientDescent

METHODS = ("sgd", "rbd", "fpd", "nes", "nes-shared-batch")


def make(name: str, basis: Basis, settings: Settings, first: int = 0) -> Phase[State]:
    """A method by its name.

    Args:
        name: one of METHODS.
        basis: the directions; `sgd` takes only D from it.
        settings: the learning rate, workers and what else methods can be told.
        first: the step from which on the method is used, in a run of several.

    Returns:
        a `Phase`, whose `start(theta, t)` gives a `Replica`.

    A step of two workers, by hand:

    >>> import numpy as np, rbd_ref
    >>> from rbd_ref import methods
    >>> class Bowl:                                                 # |theta|^2 / 2, whose gradient is theta
    ...     def loss_and_gradient(self, theta, step, worker):
    ...         return float(theta @ theta) / 2, theta
    >>> basis = rbd_ref.Basis(rbd_ref.compartments.whole(1000, d=100), seed=0)
    >>> settings = methods.Settings(rate=0.5, workers=2)
    >>> replica = methods.make("rbd", basis, settings).start(np.ones(1000, dtype=np.float32), t=0)
    >>> local = replica.method.init_local()                         # what a worker keeps to itself: here nothing
    >>> proposals = [replica.propose(Bowl(), worker, local)[0] for worker in (0, 1)]
    >>> proposals[0].payload.shape                                  # all that a worker sends
    (100,)
    >>> after = replica.step(np.stack([proposal.payload for proposal in proposals]))
    >>> after.t, bool(np.linalg.norm(after.theta) < np.linalg.norm(replica.theta))
    (1, True)
    """
    member("method", name, METHODS)
    for what, value, kind in (("basis", basis, Basis), ("settings", settings, Settings)):
        if not isinstance(value, kind):
            raise TypeError(f"{what} is {value!r}, expected a {kind.__name__}: make one with {kind.__module__}")
    if name == "sgd":
        return Phase(first, StochasticGradientDescent(basis.plan.D, settings))
    if name == "rbd":
        return Phase(first, RandomBasesDescent(basis, settings))
    if name == "fpd":
        return Phase(first, FixedProjectionDescent(basis, settings))
    return Phase(first, EvolutionStrategies(basis, settings, shared_batch=name == "nes-shared-batch"))
