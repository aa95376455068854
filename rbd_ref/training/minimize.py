"""`minimize`: descend a function along random directions, without writing a problem or a configuration.

Tests: tests/test_minimize.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rbd_ref._check import vector
from rbd_ref._types import Float32Array
from rbd_ref.runs.config import Config
from rbd_ref.training.fit import Result, fit

LossAndGradient = Callable[..., tuple[float, Any]]
BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _takes_theta_alone(function: Any) -> bool:
    """Whether a function is one of theta; else it is one of theta, step and worker."""
    if not callable(function):
        raise TypeError(
            f"loss_and_gradient is {function!r}, expected a function that returns a loss and a gradient: pass one"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some that are not written in Python
        return True
    kinds = [parameter.kind for parameter in signature.parameters.values() if parameter.default is parameter.empty]
    places = [kind for kind in kinds if kind in BY_PLACE]
    if len(places) == 1 and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return True
    try:
        signature.bind(None, None, None)
    except TypeError:
        raise TypeError(
            f"loss_and_gradient takes {signature}, expected (theta) or (theta, step, worker): change its arguments"
        ) from None
    return False


class Function:
    """A function and where it starts, as a problem."""

    def __init__(self, function: LossAndGradient, theta0: ArrayLike) -> None:
        start = np.asarray(theta0)
        self.theta0 = vector("theta0", start, start.size)
        self.D = start.size
        self.alone = _takes_theta_alone(function)
        self.function = function

    def initial(self, seed: int) -> Float32Array:
        """theta0, whatever the seed."""
        return self.theta0

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Any]:
        """The function's."""
        return self.function(theta) if self.alone else self.function(theta, step, worker)


def minimize(
    loss_and_gradient: LossAndGradient,
    theta0: ArrayLike,
    d: int = 250,
    lr: float = 1.0,
    steps: int = 500,
    method: str = "rbd",
    workers: int = 1,
) -> Result:
    """Descend a function along random directions.

        theta <- theta - lr sum_i a_i phi_i,   a_i = <phi_i, g> / |phi_i|^2,   phi redrawn at every step

    It is `fit` for a function: `fit` has more settings, evaluations, a folder for the run.

    Args:
        loss_and_gradient: a function of theta, or of (theta, step, worker), that returns a float and D floats; theta
            is float32. Which of the two is read from its arguments.
        theta0: where to start, D floats.
        d: number of directions, at most D; `sgd` has none.
        lr: the learning rate; `suggest` names one from that of SGD.
        steps: how many steps to take.
        method: `rbd`, `fpd`, `sgd`, `nes` or `nes-shared-batch`.
        workers: whose updates are added at each step, each along a basis of its own.

    Returns:
        a `Result` with `theta`, `history` and `sha256`.

    Raises:
        TypeError, ValueError: a wrong function or theta0, in one sentence.
        rbd_ref.RunError: a wrong setting, or a loss that is not finite, in one sentence.

    Examples:
        >>> import numpy as np, rbd_ref
        >>> target = np.linspace(-1, 1, 1000)
        >>> def bowl(theta):
        ...     g = theta - target
        ...     return g @ g / 2, g
        >>> result = rbd_ref.minimize(bowl, np.zeros(1000), d=100, steps=100)
        >>> result.theta.shape, bool(result.history.loss[-1] < result.history.loss[0] / 1000)
        ((1000,), True)
    """
    problem = Function(loss_and_gradient, theta0)
    dims = None if method == "sgd" else d
    return fit(Config(dims=dims, lr=lr, steps=steps, method=method, workers=workers), problem)
