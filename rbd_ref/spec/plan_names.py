"""Plans by name: compartments as in `tensor` or `even:4`, and numbers of directions as in `250` or `each:250`.

The trainer, the torch optimizer and the optax transformation read the same names.
Tests: tests/test_compartments.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rbd_ref.spec.compartments import Plan, even, proportional, split

DIMS = re.compile(r"(each:)?([1-9][0-9]*)")
FORMS = {"even": "even:K", "proportional": "proportional:R"}  # of kinds that take a number
KINDS = ("whole", "tensor", "even", "proportional")  # for tensors that belong to no layers


class Dims(NamedTuple):
    """How many directions, for each compartment or in all."""

    number: int
    each: bool


def parse_dims(value: Any) -> Dims:
    """`250` in all, or `"each:250"`.

    >>> parse_dims("each:250")
    Dims(number=250, each=True)
    """
    found = None if isinstance(value, bool) else DIMS.fullmatch(str(value))
    if found is None:
        raise ValueError(f"dims {str(value)!r} cannot be read, expected N directions in all, as in 250, or each:N")
    return Dims(int(found[2]), bool(found[1]))


class Cut(NamedTuple):
    """A kind of compartments, with its number where it takes one and 0 where it takes none."""

    kind: str
    number: float


def parse_cut(how: Any, kinds: Sequence[str] = KINDS) -> Cut:
    """One of these kinds of compartments.

    >>> parse_cut("proportional:400")
    Cut(kind='proportional', number=400.0)
    """
    kind, colon, text = str(how).partition(":")
    number = _number(text, whole=kind == "even") if colon else 0
    if kind not in kinds or (kind in FORMS) != bool(number) or bool(colon) != bool(number):
        names = [FORMS.get(known, known) for known in kinds]
        raise ValueError(
            f"compartments {str(how)!r} cannot be read, expected {', '.join(names[:-1])} or {names[-1]} with a number, "
            "as in even:4 or proportional:400"
        )
    return Cut(kind, number)


def _number(text: str, whole: bool) -> float:
    """A number from 1 up, or 0 for what is none."""
    try:
        found = (int(text) if text.isdecimal() else 0) if whole else float(text)
    except ValueError:
        return 0
    return found if 1 <= found < float("inf") else 0


def plan_of_tensors(sizes: Sequence[int], dims: Dims, cut: Cut) -> Plan:
    """The plan of tensors of these sizes; there are never more compartments than elements, nor directions.

    >>> plan_of_tensors([6, 2], parse_dims(250), parse_cut("tensor")).dims
    (6, 2)
    """
    if cut.kind == "proportional":
        return proportional(sizes, cut.number)
    D = sum(sizes)
    cuts = tuple(sizes) if cut.kind == "tensor" else (D,)
    if cut.kind == "even":
        cuts = even(D, min(int(cut.number), D), d=1).sizes
    if dims.each:
        return Plan(cuts, tuple(min(dims.number, size) for size in cuts))
    return Plan(cuts, split(min(dims.number, D), cuts))
