"""`replay`: a model from its base checkpoint and the journal of an `RBD` optimizer, to the bit and on any device.

Tests: tests/test_torch_journal.py.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbd_ref._check import integer
from rbd_ref._types import TWO_32
from rbd_ref.runs.files import RunError, quoted
from rbd_ref.runs.journal import Journal, Record
from rbd_torch.descent import Descent, Options
from rbd_torch.journal import VERSION, Rows, digest_of, from_words
from rbd_torch.layout import Layout


@torch.no_grad()
def replay(model: nn.Module | Iterable[Tensor], journal: str | Path, step: int | None = None) -> int:
    """Move the weights of a model from those of step 0 to those of a later step, by the coefficients of a journal.

    Nothing else is needed: no data, no gradients. The weights are those of the run to the bit, on any device. What is
    no parameter, such as the statistics of batch norm, stays as it is.

    Args:
        model: the model with the weights that the run began with; or its parameters, in the order in which the
            optimizer was given them.
        journal: the file that `RBD(..., journal=...)` has written.
        step: how many steps; default: all.

    Returns:
        The number of steps that were taken.

    Raises:
        RunError: the file is damaged or too short, or of another model; the model is as it was.

    Examples:
        >>> import copy, pathlib, tempfile, torch, rbd_torch
        >>> base = torch.nn.Linear(10, 2)
        >>> model = copy.deepcopy(base)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.rbd"
        >>> optimizer = rbd_torch.RBD(model.parameters(), lr=0.1, dims=4, journal=path)
        >>> for _ in range(3):
        ...     model(torch.ones(1, 10)).square().sum().backward()
        ...     optimizer.step()
        >>> rbd_torch.replay(base, path)
        3
        >>> bool(torch.equal(base.weight, model.weight))
        True
    """
    path = Path(journal)
    text = _settings(path)
    settings = json.loads(text)
    groups = _matched(model, settings["groups"], path)
    descent = Descent(Layout(groups, frozen_too=True), Options(**settings["options"]), settings["workers"])
    rows = Rows(descent, text)
    records = Journal(path, digest_of(text), rows.layouts)
    last = _last_step(records, step)
    _repeat(descent, rows, records, last)
    return last


def _settings(path: Path) -> str:
    """The text of the first record."""
    for record in Journal(path).records():
        try:
            text = from_words(record.rows)
            if json.loads(text)["rbd_torch"] == VERSION:
                return text
        except (ValueError, KeyError, TypeError):
            pass
        break
    raise RunError(f"{path} is no journal of rbd_torch, expected one that RBD(..., journal=...) has written: name it")


def _matched(model: nn.Module | Iterable[Tensor], described: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The groups of the optimizer, with the parameters of this model that were trained."""
    wanted = [parameter for group in described for parameter in group["parameters"]]
    found = _by_name(model, wanted) if isinstance(model, nn.Module) and wanted[0]["name"] else _in_order(model)
    if len(found) != len(wanted):
        raise RunError(f"the model has {len(found)} parameters and {path} {len(wanted)}, expected the model of the run")
    for parameter, one in zip(found, wanted, strict=True):
        _check(parameter, one, path)
    following = iter(found)
    return [
        {
            "dims": group["dims"],
            "compartments": group["compartments"],
            "params": [parameter for one in group["parameters"] for parameter in [next(following)] if one["trained"]],
        }
        for group in described
    ]


def _in_order(model: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    return list(model.parameters() if isinstance(model, nn.Module) else model)


def _by_name(model: nn.Module, wanted: list[dict[str, Any]]) -> list[Tensor]:
    """The parameters of these names, where the optimizer was given names."""
    named = dict(model.named_parameters())
    missing = [one["name"] for one in wanted if one["name"] not in named]
    if missing:
        raise RunError(f"the model has no parameter {quoted(missing[0])}, expected the model of the run: make that one")
    return [named[one["name"]] for one in wanted]


def _check(parameter: Tensor, one: dict[str, Any], path: Path) -> None:
    """Refuse a parameter of another shape or type."""
    found = (list(parameter.shape), str(parameter.dtype).removeprefix("torch."))
    if found != (one["shape"], one["dtype"]):
        raise RunError(
            f"a parameter has shape {found[0]} and type {found[1]} where {path} has {one['shape']} and {one['dtype']}, "
            "expected those of the run: load its base checkpoint, or give RBD named parameters if only their order "
            "differs"
        )


def _last_step(records: Journal, step: int | None) -> int:
    """How many steps to take; all records up to there are read and checked before anything is moved."""
    wanted = None if step is None else integer("step", step, 0, TWO_32)
    count = 0
    for record in records.records():
        count = record.t
        if count == wanted:
            return count
    if wanted is not None:
        raise RunError(f"{records.path} has {count} steps, expected {wanted} at least: choose an earlier step")
    if records.torn:
        torn = f"{records.path} ends with a torn record of {records.torn} bytes, which is left out"
        warnings.warn(torn, stacklevel=3)
    return count


def _repeat(descent: Descent, rows: Rows, records: Journal, last: int) -> None:
    """All steps up to the last."""
    velocity: Tensor | None = None
    for record in _steps(records, last):
        messages, rates = rows.read(record.rows)
        found = rows.form.read(messages)
        if velocity is None and any(rate.momentum for rate in rates):
            velocity = torch.zeros(descent.layout.plan.D, dtype=torch.float32, device=descent.layout.device)
        u = descent.update(found.payloads, record.t - 1, {})
        descent.move(u, rates, velocity, found.present)


def _steps(records: Journal, last: int) -> Iterator[Record]:
    """The records of steps, which follow that of the settings."""
    for record in records.records():
        if record.t > last:
            return
        if record.t > 0:
            yield record
