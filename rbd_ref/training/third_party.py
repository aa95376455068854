"""A method of a third party, `--method package.module:make`: found by its path, and held to the protocol.

    make(basis, settings, shapes) -> method

`basis` has D, the number of directions d as the budget of a step (`basis.plan`) and the seed; `settings` are those of
rbd_ref/methods/settings.py; `shapes` are those of the tensors that make up theta, in their order. What comes back has

    payload_size                      floats that a worker sends
    state_type                        a NamedTuple: theta, t, and whatever else every replica holds
    init_state, init_local, propose, collect, apply_update      as `Method` of rbd_ref/methods/base.py says

and may have

    reads = ()                        settings beside rate, schedule and workers that it goes by; others are refused
    every = 1                         n: workers send at each n-th step only

A method that breaks what replicas, journal or checkpoints rely on gets one sentence instead of wrong weights: arrays
are float32 and keep their shapes, what is sent has the size that was said, and what was handed in is not written to.
Tests: tests/test_peers.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from rbd_ref._path import import_named
from rbd_ref._types import F32, Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.base import NONE, Objective, PendingUpdate, Proposal, Shapes, payload_size_at
from rbd_ref.methods.settings import Settings
from rbd_ref.runs import meaning
from rbd_ref.runs.config import FIELDS, Config
from rbd_ref.runs.files import RunError, quoted

PARTS = ("payload_size", "state_type", "init_state", "init_local", "propose", "collect", "apply_update")
UPDATE = ("D", "terms", "term", "part")
TAKEN = ("info", "path", "flag", "state", "sha256", "digest", "journal", "local")  # what files have beside the fields


def make(name: str, basis: Basis, settings: Settings, shapes: Shapes) -> ThirdPartyMethod:
    """The method that the function of this path makes, checked; a ValueError is its author's sentence for its user."""
    function = _function(name, basis, settings, shapes)
    try:
        return _checked(name, function(basis, settings, shapes), basis.plan.D)
    except (TypeError, OSError) as error:  # which would be shown without where they come from
        raise RuntimeError(f"method {name!r} fails while it is made") from error


def _checked(name: str, made: Any, D: int) -> ThirdPartyMethod:
    """What was made, if it is a method."""
    missing = [part for part in PARTS if not hasattr(made, part)]
    if missing:
        raise ValueError(
            f"method {name!r} made a {type(made).__name__} without {', '.join(missing)}, expected all of "
            "rbd_ref.methods.base.Method: add them"
        )
    return ThirdPartyMethod(name, made, D)


def _function(name: str, *arguments: Any) -> Callable[..., Any]:
    """What stands at a path, if it can be called with these arguments."""
    try:
        found = import_named(name)
    except MemoryError:
        raise
    except Exception as error:  # of a module of somebody else's, whatever it does when it is imported
        raise ValueError(
            f"method {name!r} cannot be loaded ({type(error).__name__}: {quoted(error)}), expected "
            "package.module:make: correct the name, or what it imports"
        ) from error
    try:
        inspect.signature(found).bind(*arguments)
    except (TypeError, ValueError):
        raise ValueError(
            f"method {name!r} is {found!r}, expected a function of (basis, settings, shapes) that makes a method: "
            "change its arguments"
        ) from None
    return found  # type: ignore[no-any-return]


def refuse_unread(method: ThirdPartyMethod, config: Config) -> None:
    """Refuse settings that the method does not go by."""
    values = asdict(config)
    for item in FIELDS.values():
        if meaning.unread(item, values, method.reads):
            raise ValueError(
                f"{item.name} is {values[item.name]!r} and would have no effect, expected what {method.name} reads "
                f"({', '.join(method.reads) or 'nothing'}): leave {item.name} out, or name it in the method's `reads`"
            )


def _read_only(value: Any) -> Any:
    """An array that cannot be written to, in the place of another; all else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _frozen(fields: Any) -> Any:
    """A NamedTuple whose arrays cannot be written to."""
    return type(fields)._make(map(_read_only, fields))


class ThirdPartyMethod:
    """The method as a replica takes it, under the name that its user gave."""

    replayable: ClassVar[bool] = True

    def __init__(self, name: str, method: Any, D: int) -> None:
        self.name = name
        self.method = method
        self.payload_size = self._count("payload_size", method.payload_size)
        self.every = self._count("every", getattr(method, "every", 1))
        self.reads = tuple(getattr(method, "reads", ()))
        self.state_type: Any = method.state_type
        self.state_shapes = self._shapes("init_state", method.init_state(np.zeros(D, dtype=F32), 0), (int,))
        self.local_shapes = self._shapes("init_local", method.init_local())
        if self.state_shapes.get("theta") != (D,):
            raise self._broken("init_state", "a state without theta", f"theta, float32 of shape ({D},)")

    def init_state(self, theta: Float32Array, t: int) -> Any:
        """The method's own."""
        state = self.method.init_state(_read_only(theta), t)
        self._check_state("init_state", state, t)
        return state

    def init_local(self) -> Any:
        """The method's own."""
        return self.method.init_local()

    def propose(self, objective: Objective, state: Any, worker: int, local: Any) -> tuple[Proposal, Any]:
        """The method's own. A worker's update is rebuilt from its payload, as everyone else does it."""
        found = self.method.propose(objective, _frozen(state), worker, _frozen(local))
        proposal, after = self._pair("propose", found, Proposal)
        sent = proposal.payload
        size = payload_size_at(self, state.t)
        if not isinstance(sent, np.ndarray) or sent.dtype != F32 or sent.shape != (size,):
            raise self._broken("propose", f"{_shown(sent)} to be sent at step {state.t}", f"float32 of shape ({size},)")
        shapes = self._shapes("propose", after)
        if shapes != self.local_shapes:
            raise self._broken("propose", f"a local state of shapes {shapes}", f"{self.local_shapes}, as at first")
        return Proposal(proposal.loss, sent, proposal.gradient), after

    def decode(self, payloads: Float32Array) -> Float32Array:
        """What was sent: third parties send numbers."""
        return payloads

    def collect(
        self, state: Any, payloads: Float32Array, local_updates: Mapping[int, Float32Array]
    ) -> tuple[Any, PendingUpdate]:
        """The method's own."""
        found = self.method.collect(_frozen(state), _read_only(payloads), NONE)
        after, pending = self._pair("collect", found, self.state_type)
        if missing := [part for part in UPDATE if not hasattr(pending, part)]:
            raise self._broken("collect", f"a {type(pending).__name__} without {', '.join(missing)}", "a PendingUpdate")
        self._check_state("collect", after, state.t)
        return after, pending

    def apply_update(self, state: Any, u: Float32Array) -> Any:
        """The method's own, after which one more step was taken."""
        after = self.method.apply_update(_frozen(state), _read_only(u))
        self._check_state("apply_update", after, state.t + 1)
        return after

    def _count(self, where: str, value: Any) -> int:
        """A whole number from 1 up."""
        if type(value) is not int or value < 1:
            raise self._broken(where, repr(value), "a whole number from 1 up")
        return value

    def _pair(self, where: str, found: Any, first: type) -> Any:
        """What a function gave, if it is two things, of which the first is of this class."""
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], first):
            raise self._broken(where, _shown(found), f"a {first.__name__} and one thing more")
        return found

    def _check_state(self, where: str, state: Any, t: int) -> None:
        """Refuse a state of another class, with other arrays than at first, or after another number of steps."""
        if not isinstance(state, self.state_type):
            raise self._broken(where, _shown(state), f"a {self.state_type.__name__}, its state_type")
        shapes = self._shapes(where, state, (int,))
        if shapes != self.state_shapes:
            raise self._broken(where, f"a state of shapes {shapes}", f"{self.state_shapes}, as at first")
        if state.t != t:
            raise self._broken(where, f"a state with t = {state.t}", f"t = {t}")

    def _shapes(self, where: str, fields: Any, others: tuple[type, ...] = ()) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of a NamedTuple, which holds float32 arrays and may hold `others` beside."""
        if not isinstance(fields, tuple) or not hasattr(fields, "_asdict"):
            raise self._broken(where, _shown(fields), "a NamedTuple")
        values = fields._asdict()
        if taken := set(TAKEN) & set(values):
            raise self._broken(where, f"a field called {min(taken)}", "another name, as files use this one")
        arrays = {name: value for name, value in values.items() if type(value) not in others}
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray) or value.dtype != F32:
                allowed = "a float32 array or a whole number" if others else "a float32 array"
                raise self._broken(where, f"{_shown(value)} for {name}", f"{allowed}, which checkpoints hold")
        return {name: value.shape for name, value in arrays.items()}

    def _broken(self, where: str, found: str, expected: str) -> RunError:
        """The sentence for what cannot be trained with."""
        return RunError(f"method {self.name!r} has {found} from {where}, expected {expected}: correct the method")


def _shown(value: Any) -> str:
    """What a value is, in few words."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
