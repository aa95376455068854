"""The journal of an optimizer: what all workers sent at each step, in one file from which `replay` rebuilds a model.

The file is that of rbd_ref/runs/journal.py, appended to as safely, and read by the same code:

    record 0        the settings, as the words of a JSON text, and a 0
    record t + 1    step t, a row for each worker: its message (exchange.py), eta and momentum of each group, its loss

The digest of the file is that of the settings. The loss is what the closure of this process returned, 0 where there was
none, or for the other ranks' workers.
Tests: tests/test_torch_journal.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from rbd_ref._types import F32, Float32Array
from rbd_ref.runs.files import RunError, reading
from rbd_ref.runs.journal import Journal, Place, Writer, chain_start
from rbd_ref.runs.layouts import Layout, Layouts, Stretch
from rbd_torch.descent import Descent, Options, Rate
from rbd_torch.exchange import Form

VERSION = 1
FLAG = "journal="  # what users choose another file with


def describe(groups: Sequence[dict[str, Any]], options: Options, workers: int) -> str:
    """All that a replay has to know, as JSON: the parameters of each group in order, and the settings."""
    described = [
        {
            "dims": group["dims"],
            "compartments": group["compartments"],
            "parameters": [
                {
                    "name": name,
                    "shape": list(parameter.shape),
                    "dtype": str(parameter.dtype).removeprefix("torch."),
                    "trained": parameter.requires_grad,
                }
                for name, parameter in zip(names_of(group), group["params"], strict=True)
            ],
        }
        for group in groups
    ]
    return json.dumps({"rbd_torch": VERSION, "workers": workers, "options": options._asdict(), "groups": described})


def names_of(group: dict[str, Any]) -> list[str]:
    """The names of a group's parameters, empty where the optimizer was not given any."""
    found: list[str] = group.get("param_names") or [""] * len(group["params"])
    return found


def digest_of(text: str) -> str:
    """Of the settings."""
    return hashlib.sha256(text.encode()).hexdigest()


def to_words(text: str) -> Float32Array:
    """A text as the row of a record: words of four bytes, filled up with blanks, and a 0."""
    data = text.encode()
    padded = data + b" " * (-len(data) % 4)
    return np.append(np.frombuffer(padded, dtype="<u4").astype(np.uint32), np.uint32(0)).view(F32)[None]


def from_words(rows: Float32Array) -> str:
    """The text of such a row."""
    words = np.ascontiguousarray(rows[0, :-1]).view(np.uint32)
    return words.astype("<u4").tobytes().decode().rstrip()


class Rows:
    """How the records of a descent are laid out."""

    def __init__(self, descent: Descent, text: str) -> None:
        self.sharing = descent.sharing
        self.form = Form(len(descent.layout.spots), descent.sharing.payload_size)
        self.groups = descent.layout.groups
        self.text = text
        self.columns = self.form.size + 2 * self.groups + 1

    @property
    def layouts(self) -> Layouts:
        """As rbd_ref reads them."""
        settings = Layout(1, to_words(self.text).shape[1])
        step = Layout(self.sharing.workers, self.columns, self._numbers)
        return Layouts(Stretch(0, settings), Stretch(1, step))

    def _numbers(self, rows: Float32Array) -> Float32Array:
        """The coefficients in what was sent: all have to be finite."""
        return self.sharing.decode_all(np.ascontiguousarray(rows[:, self.form.head : self.form.size]))

    def write(self, messages: Float32Array, rates: Sequence[Rate], losses: Sequence[float]) -> Float32Array:
        """The rows of a step."""
        rows = np.zeros((self.sharing.workers, self.columns), dtype=F32)
        rows.view(np.uint32)[:, : self.form.size] = messages.view(np.uint32)
        rows[:, self.form.size : -1] = np.array(rates, dtype=F32).reshape(-1)
        rows[:, -1] = losses
        return rows

    def read(self, rows: Float32Array) -> tuple[Float32Array, list[Rate]]:
        """The messages of a step, and its rates."""
        rates = rows[0, self.form.size : -1].reshape(-1, 2).tolist()
        return np.ascontiguousarray(rows[:, : self.form.size]), [Rate(eta, momentum) for eta, momentum in rates]


class Recorder:
    """An open journal, which no other process writes to meanwhile."""

    def __init__(self, path: Path, rows: Rows, t: int, chain: str) -> None:
        self.rows = rows
        if t == 0:
            self.writer = _begun(path, rows.text)
            self.lock = _locked(path)
            return
        self.lock = _locked(path)
        try:
            place = _place_after(matching(path, rows), t, chain)
            self.writer = Writer.reopen(path, place, FLAG)
        except RunError:
            os.close(self.lock)
            raise

    def append(self, t: int, messages: Float32Array, rates: Sequence[Rate], losses: Sequence[float]) -> None:
        """The record of step t."""
        self.writer.append(t + 1, self.rows.write(messages, rates, losses))

    def checkpoint(self) -> str:
        """The chain value up to here, once all of it is on the disk."""
        self.writer.sync()
        return self.writer.chain.hex()

    def close(self) -> None:
        """No more steps."""
        self.writer.close()
        os.close(self.lock)


def matching(path: Path, rows: Rows) -> Journal:
    """The journal that is there, if its settings are these."""
    journal = Journal(path, layouts=rows.layouts)
    if journal.first.chain != chain_start(digest_of(rows.text)):
        raise RunError(
            f"{path} is the journal of other settings, parameters or workers, expected those of this optimizer: make "
            "it as it was made for that journal, or start from step 0 with a new file"
        )
    return journal


def _begun(path: Path, text: str) -> Writer:
    """A new journal of these settings; if there is no room for them, no file is left behind."""
    _refuse_existing(path)
    writer: Writer | None = None
    try:
        writer = Writer.create(path, digest_of(text), FLAG)
        writer.append(0, to_words(text))
    except RunError as error:
        if writer is not None:
            writer.close()
        if not isinstance(error.__cause__, FileExistsError):  # by another process, which was faster
            with suppress(OSError):
                path.unlink()
        raise
    return writer


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise RunError(
            f"{path} is there already, expected a new file for a run that starts at step 0: load the state that was "
            "saved beside it to go on, or choose another file"
        )


def _place_after(journal: Journal, t: int, chain: str) -> Place:
    """Where the record of step t belongs, if those before it are of the steps that the state has taken."""
    place = journal.place(t + 1)
    if place is None:
        raise RunError(
            f"{journal.path} ends before step {t}, which the state has reached, expected the journal of all its steps: "
            "restore it"
        )
    if place.chain.hex() != chain:
        raise RunError(
            f"{journal.path} is not the journal of this state: step {t} has another chain value, expected the file "
            "that was written when the state was saved: restore it, or start from step 0 with a new file"
        )
    return place


def _locked(path: Path) -> int:
    """An open file of this name that is locked until it is closed."""
    with reading(path):
        handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise RunError(f"{path} is being written by another optimizer, expected one writer: close() that one") from None
    except OSError:  # a file system without locks
        pass
    return handle
