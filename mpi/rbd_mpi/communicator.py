"""The exchange over MPI: coefficients by Allgather, sums by everyone in the same order, no rank left waiting.

Nothing is reduced by MPI, which may add floats in another order on each rank. Every wait is a poll that ends after the
timeout: then a roll is called, and those who do not answer are named. Whatever ends one rank ends all.
Tests: tests/test_mpi.py.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from rbd_mpi.launch import cores, on_terminal
from rbd_mpi.node import Node
from rbd_ref._types import F32, Float32Array
from rbd_ref.methods.descent import Rebuild, in_order
from rbd_ref.runs.files import RunError
from rbd_ref.training.communicator import RanksLost, share

SPINS = 50  # polls before a waiting rank sleeps between them
NAP = 0.0002
ROLL_CALL = 2.0  # seconds in which the living answer
LOST = 75  # exit status when a rank was given up
FAILURES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
T = TypeVar("T")


class Lost(RunError):
    """Some ranks do not answer."""


class MpiExchange:
    """All ranks of MPI's world."""

    def __init__(self, mpi: Any) -> None:
        self.mpi, self.sent, self.recovered, self.terminal = mpi, 0, False, on_terminal()
        self.timeout, self.faults, self.shares = 600.0, "", True
        self.failures = {getattr(mpi, name, None) for name in FAILURES}
        self._join(mpi.COMM_WORLD)

    def _join(self, world: Any) -> None:
        """Take part in this world."""
        self.world, self.rank, self.ranks = world, world.rank, world.size
        self.comm, self.roll = world.Dup(), world.Dup()
        self.node = Node(self.mpi, self.comm, self.wait)
        self.threads = max(1, cores() // self.node.size)

    def recover(self) -> None:
        """With an MPI that survives the loss of ranks (ULFM): all leave what they wait for and close up."""
        for comm in (self.node.comm, self.comm, self.world):
            comm.Revoke()
        self.recovered = True
        self._join(self.world.Shrink())

    def options(self, timeout: float, reconstruct: str, faults: str) -> None:
        """What the configuration says."""
        self.timeout, self.shares, self.faults = timeout, reconstruct == "node", faults

    def wait(self, request: Any) -> None:
        """Until a request is done: polls, then naps; a roll call after the timeout or when another rank calls it."""
        polls, began = 0, time.monotonic()
        while not self._done(request):
            polls += 1
            if polls < SPINS:
                os.sched_yield()
                continue
            time.sleep(NAP)
            if polls % 512 == 0 and (time.monotonic() - began > self.timeout or self.roll.Iprobe()):
                self._call_the_roll()

    def _done(self, request: Any) -> bool:
        """Whether a request is done; MPI may say instead that ranks are lost."""
        try:
            return bool(request.Test())
        except self.mpi.Exception as error:
            if error.Get_error_class() not in self.failures:
                raise
            raise RanksLost(f"ranks were lost of the {self.ranks} that there were") from error

    def _call_the_roll(self) -> None:
        """Name those who do not answer when everyone who waits calls everyone; the first who does answer speaks."""
        here = np.array([self.rank], dtype=np.int32)
        heard = np.full((self.ranks, 1), -1, dtype=np.int32)
        calls = [self.roll.Isend(here, rank) for rank in range(self.ranks)]
        answers = [self.roll.Irecv(heard[rank], rank) for rank in range(self.ranks)]
        end = time.monotonic() + ROLL_CALL
        while time.monotonic() < end and not all(answer.Test() for answer in answers):
            time.sleep(0.01)
        missing = [rank for rank in range(self.ranks) if heard[rank, 0] != rank]
        del calls
        if any(rank not in missing for rank in range(self.rank)):
            time.sleep(ROLL_CALL)
        who = f"rank {', '.join(map(str, missing))} does not answer" if missing else "no exchange comes about"
        raise Lost(
            f"{who} after {self.timeout:g} s, expected every rank to take part in each step: the run ends here and "
            "loses no step that was completed; go on with --resume, with other ranks if need be, or raise --timeout"
        )

    def guard(self, body: Callable[[], int]) -> int:
        """`body`, and then all ranks leave together; whatever it raises ends them all."""
        try:
            status = body()
            self.close()
            if self.recovered:
                sys.stdout.flush()
                os._exit(status)  # MPI's own end may wait for those who are lost
            return status
        except BaseException as error:
            self._end_all(error)

    def _end_all(self, error: BaseException) -> NoReturn:
        """Say what happened here, on paper too, and end every rank."""
        expected = isinstance(error, RunError)
        status = LOST if isinstance(error, Lost) else 2 if expected else 1
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) and error.code else 1
            text = f"rank {self.rank} was left by exit with status {error.code}"
        elif isinstance(error, KeyboardInterrupt):
            status, text = 130, f"rank {self.rank} was interrupted"
        else:
            text = f"rank {self.rank}: {error if expected else ''.join(traceback.format_exception(error)).strip()}"
        self._write_down(text)
        print(f"rbd_ref.train: {text}", file=sys.stderr, flush=True)
        time.sleep(0.1)  # what was just printed reaches the launcher before the end does
        self.world.Abort(status)
        os._exit(status)

    def _write_down(self, text: str) -> None:
        """Into faults.log of the run, as what is printed at the end may be lost."""
        try:
            if self.faults:
                with (Path(self.faults) / "faults.log").open("a", encoding="utf-8") as out:
                    out.write(f"{text}\n")
        except OSError:
            pass  # the fault that is being written down may be that of this disk

    def close(self) -> None:
        """Free what ranks share, together: left to the interpreter's end it may hang."""
        self.wait(self.comm.Ibarrier())
        if self.recovered:
            return
        self.node.close()
        self.roll.Free()
        self.comm.Free()
        self.mpi.Finalize()

    def agree(self, fault: str | None) -> list[str]:
        """The different faults, in the order of ranks."""
        return list(dict.fromkeys(text for text in self._everyone(fault) if text is not None))

    def _everyone(self, value: T) -> list[T]:
        """The values of all ranks, of any kind: their lengths first, then their bytes."""
        mine = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes = np.empty(self.ranks, dtype=np.int64)
        self.wait(self.comm.Iallgather(np.array([mine.size], dtype=np.int64), sizes))
        received = np.empty(int(sizes.sum()), dtype=np.uint8)
        self.wait(self.comm.Iallgatherv(mine, (received, sizes.tolist())))
        return [pickle.loads(part.tobytes()) for part in np.split(received, np.cumsum(sizes)[:-1])]

    def spread(self, value: T) -> T:
        """What rank 0 has."""
        return self._everyone(value if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def in_turn(self, body: Callable[[], object]) -> None:
        """The first rank of each node, then its others."""
        try:
            if self.node.rank == 0:
                body()
        finally:
            self.node.barrier()
        if self.node.rank > 0:
            body()

    def gather(self, rows: Float32Array, workers: int, stop: int) -> tuple[Float32Array, int]:
        """The rows of all workers by one Allgather, with a number more in each: the wish to stop."""
        columns = rows.shape[1] + 1
        mine = np.concatenate([rows, np.full((len(rows), 1), stop, dtype=F32)], axis=1)
        counts = [columns * len(share(workers, rank, self.ranks)) for rank in range(self.ranks)]
        received = np.empty((workers, columns), dtype=F32)
        self.wait(self.comm.Iallgatherv(mine, (received, counts)))
        self.sent += mine.nbytes
        return np.ascontiguousarray(received[:, :-1]), int(received[:, -1].max())

    def total(self, rebuild: Rebuild) -> Float32Array:
        """By the ranks of a node together, or by each rank for itself."""
        if not self.shares or self.node.size == 1:
            return in_order(rebuild)
        if rebuild.bases < self.node.size:
            return self.node.by_parts(rebuild)
        return self.node.by_workers(rebuild, self._mine(rebuild.bases))

    def _mine(self, workers: int) -> list[int]:
        """The workers whose updates this rank makes for its node: its own, and a share of those on other nodes."""
        own = share(workers, self.rank, self.ranks)
        here = {w for rank in self.node.members for w in share(workers, rank, self.ranks)}
        elsewhere = [w for w in range(workers) if w not in here]
        return [*own, *elsewhere[self.node.rank :: self.node.size]]

    def keep(self, theta: Float32Array) -> Float32Array:
        """In the node's memory, once for all its ranks."""
        return self.node.keep(theta) if self.shares and self.node.size > 1 else theta

    def different(self, digest: bytes) -> list[int]:
        """By the digests of all ranks."""
        digests = self._everyone(digest)
        usual = Counter(digests).most_common(1)[0][0]
        return [rank for rank, found in enumerate(digests) if found != usual]
