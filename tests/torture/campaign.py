"""What a campaign is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

Tally = Counter[str]  # what a case did, by kind: kills, resumes, ...


class Failed(Exception):
    """Something that a case found and that is not as promised."""


def demand(condition: object, text: str) -> None:
    """Fail the case with this text unless the condition holds."""
    if not condition:
        raise Failed(text)


def usable(folder: Path) -> str:
    """The reason why a campaign cannot run here: none."""
    return ""


@dataclass(frozen=True)
class Campaign:
    """Cases of a kind: each is given random numbers of its own and an empty folder, and says what it did."""

    name: str
    weight: float  # its share of the minutes
    case: Callable[[Random, Path], Tally]
    unusable: Callable[[Path], str] = usable
    limit: float = 180.0  # seconds after which a case hangs


def numbers(seed: int, name: str, case: int) -> Random:
    """The random numbers of a case."""
    return Random(f"{seed} {name} {case}")
