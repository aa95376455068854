"""Coefficients in fewer bits: the definition written out, what the bits may hold, and runs that send them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rbd_ref as rbd
from mpi_tools import FIT, job, require_mpi
from oracles import Linear, Quadratic
from rbd_ref import compartments, methods, replay
from rbd_ref.kernels.backend import NumbaBackend
from rbd_ref.methods import codes
from rbd_ref.methods.codes import CODES, COEFFICIENTS
from rbd_ref.methods.memory import averaged, contraction
from rbd_ref.methods.settings import EXCHANGES, Settings
from rbd_ref.methods.sharing import BasisSharing
from rbd_ref.methods.state import DescentState
from rbd_ref.runs import config as configs
from rbd_ref.runs.folder import Run as Folder
from rbd_ref.runs.layouts import CHAIN, HEAD
from rbd_ref.spec.compartments import Plan
from run_tools import (
    TINY,
    final,
    journal_reaches,
    journaled,
    lines,
    refused,
    result,
    resumed,
    rewrite_journal,
    sha,
    started,
    status,
    trained,
    wait_until,
)
from strategies import vector
from test_worker_memory import HOW, STEPS, Run, same
from tools import bits

F32 = np.float32
BACKEND = NumbaBackend()
PLAN = compartments.explicit(90, [(0, 50, 35), (50, 80, 4), (80, 83, 1), (83, 90, 5)])  # d = 45
THETA = vector(8, PLAN.D)
THREE = list(itertools.product(CODES, EXCHANGES))


def basis_of(plan: Plan = PLAN, family: str = "normal") -> rbd.Basis:
    return rbd.Basis(plan, 5, family, "unit", BACKEND)


# The definition, in whole numbers and one after the other.


def slow(name: str, a: np.ndarray, lengths: Sequence[int]) -> tuple[list[int], list[np.float32], list[np.float32]]:
    """Words, scales and coefficients by the words of docs/specification.md, section 11.1."""
    width = {"int8": 8, "sign": 1}[name]
    words = [0] * -(-a.size * width // 32)
    scales, decoded, i = [], [], 0
    for n in lengths:
        part = a[i : i + n]
        if name == "sign":
            total = 0.0
            for x in part.tolist():
                total += abs(x)
            s = F32(total / n)
        else:
            s = F32(max(abs(x) for x in part)) / F32(127)
        for x in part:
            if name == "sign":
                code = int(x < 0)
                decoded.append(-s if code else s)
            else:
                q = min(127, max(-127, round(float(x / s)))) if s > 0 else 0  # Python rounds halves to even
                code = q % 256
                decoded.append(s * F32(q))
            words[i * width // 32] |= code << (i * width % 32)
            i += 1
        scales.append(s)
    return words, scales, decoded


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = finite.map(lambda x: 0.0 if abs(x) < 2.0**-64 else x)  # as `project` gives them
some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@st.composite
def coefficients(draw: st.DrawFn, elements: st.SearchStrategy[float]) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients, and how many of them each compartment has."""
    lengths = draw(some_lengths)
    many = draw(st.lists(elements, min_size=sum(lengths), max_size=sum(lengths)))
    return np.array(many, dtype=F32), np.array(lengths)


@pytest.mark.parametrize("name", CODES)
@given(coefficients(finite))
def test_the_definition(name: str, given: tuple[np.ndarray, np.ndarray]) -> None:
    """Any floats, subnormal ones and the largest too."""
    with np.errstate(over="ignore", under="ignore"):
        a, lengths = given
        words, scales = codes.encode(CODES[name], a, lengths)
        expected, factors, values = slow(name, a, lengths.tolist())
    assert (words.dtype, words.tolist()) == (np.uint32, expected)
    assert same(scales, np.array(factors, dtype=F32))
    assert same(codes.decode(CODES[name], words, scales, lengths), np.array(values, dtype=F32))


@pytest.mark.parametrize("name", CODES)
@given(coefficients(usual))
def test_what_is_decoded_is_near(name: str, given: tuple[np.ndarray, np.ndarray]) -> None:
    """int8: within half a scale, to rounding. sign: never farther from a than 0 is, as the scale is the best."""
    a, lengths = given
    words, scales = codes.encode(CODES[name], a, lengths)
    found = codes.decode(CODES[name], words, scales, lengths).astype(np.float64)
    s = np.repeat(scales, lengths).astype(np.float64)
    if name == "int8" and np.isfinite(found).all():
        assert (np.abs(found - a) <= s * (0.5 + 1e-4)).all()
    if name == "sign":
        for x, y in zip(*(np.split(v, np.cumsum(lengths)[:-1]) for v in (found, a.astype(np.float64))), strict=True):
            assert ((x - y) ** 2).sum() <= (y**2).sum() * (1 + 1e-6)


@pytest.mark.parametrize("name", CODES)
@given(coefficients(usual))
def test_what_was_decoded_is_encoded_to_the_same(name: str, given: tuple[np.ndarray, np.ndarray]) -> None:
    a, lengths = given
    words, scales = codes.encode(CODES[name], a, lengths)
    found = codes.decode(CODES[name], words, scales, lengths)
    if not np.isfinite(found).all():
        return
    again, factors = codes.encode(CODES[name], found, lengths)
    zero = np.repeat(scales, lengths) == 0
    assert zero.any() or again.tolist() == words.tolist()
    assert np.abs(factors - scales).max() <= 2.0**-22 * scales.max()


def test_words_by_hand() -> None:
    """The first coefficient in the lowest bit, a set bit for what is negative; 0 and -0 are not."""
    a = np.array([1, -2, 3, 0, -0.0] + [0.5] * 26 + [-0.5] + [-4], dtype=F32)  # 33 of them
    words, scales = codes.encode(CODES["sign"], a, np.array([32, 1]))
    assert [f"{word:08x}" for word in words] == ["80000002", "00000001"]
    assert scales.tolist() == [F32((1 + 2 + 3 + 27 * 0.5) / 32), 4]
    a = np.array([127, -127, 2.5, 3.5, -0.5, 0, 0], dtype=F32)
    words, scales = codes.encode(CODES["int8"], a, np.array([5, 2]))
    assert [f"{word:08x}" for word in words] == ["0402817f", "00000000"]  # halves go to even: 2.5 to 2, 3.5 to 4
    assert scales.tolist() == [1, 0]


@pytest.mark.parametrize("name", CODES)
def test_nothing_but_zeros(name: str) -> None:
    """The scale is 0, and so is what is decoded; no quotient of 0 by 0 is taken."""
    a = np.zeros(40, dtype=F32)
    words, scales = codes.encode(CODES[name], a, np.array([40]))
    assert (words.any(), scales.tolist()) == (False, [0])
    assert same(codes.decode(CODES[name], words, scales, np.array([40])), a)


def test_sums_are_taken_in_order() -> None:
    """The first two add up to 256 halfway between two floats; the others, each lost in turn, would tip it together."""
    a = np.array([256, 2.0**-16] + [2.0**-46] * 254, dtype=F32)
    _, scales = codes.encode(CODES["sign"], a, np.array([256]))
    assert scales.tolist() == [1]
    _, scales = codes.encode(CODES["sign"], a[::-1].copy(), np.array([256]))
    assert scales.tolist() == [1 + 2.0**-23]


def test_a_scale_that_is_rounded_down_among_the_least_floats() -> None:
    """190 / 127 of the least float is the least float: 190 of them would not fit into a byte."""
    words, scales = codes.encode(CODES["int8"], np.array([-190 * 2.0**-149], dtype=F32), np.array([1]))
    assert (words.tolist(), scales.tolist()) == ([256 - 127], [2.0**-149])


# Payloads.


@pytest.mark.parametrize(
    ("workers", "exchange"), [(1, "independent"), (3, "shared"), *((w, "split") for w in (2, 4, 10, 45))]
)
@pytest.mark.parametrize("name", CODES)
def test_payloads(name: str, exchange: str, workers: int) -> None:
    """Codes of all coefficients first, then a scale for each compartment that the worker has directions of."""
    sharing = BasisSharing(basis_of(), Settings(1.0, workers=workers, exchange=exchange, coefficients=name))
    payloads, whole, most = [], vector(3, PLAN.d), 0
    for worker in range(workers):
        here = sharing.directions_of(worker)
        lengths = [len({*range(PLAN.d)[here]} & {*range(PLAN.d)[PLAN.directions(k)]}) for k in range(PLAN.K)]
        lengths = [n for n in lengths if n]
        words, scales, decoded = slow(name, whole[here], lengths)
        payload = sharing.encode(whole[here], worker)
        places = sharing.code_words, sharing.code_words + len(scales)
        assert payload.size == sharing.payload_size >= places[1]
        assert bits(payload)[: len(words)].tolist() == words
        assert same(payload[slice(*places)], np.array(scales))
        assert not bits(payload)[[*range(len(words), places[0]), *range(places[1], payload.size)]].any()
        assert same(sharing.decode(payload, worker), np.array(decoded))
        payloads.append(payload)
        most = max(most, len(scales))
    rows = sharing.decode_all(np.stack(payloads))
    assert rows.shape == (workers, sharing.part_size)
    assert sharing.code_words == -(-sharing.part_size * CODES[name].bits // 32)
    assert sharing.payload_size - sharing.code_words == most


def test_a_thousand_bytes_have_7968_signs() -> None:
    """As 250 floats do."""
    method = methods.make("rbd", basis_of(compartments.whole(8000, d=7968)), Settings(1.0, coefficients="sign")).method
    assert 4 * method.payload_size == 1000


def test_unlike_compartments_have_unlike_scales() -> None:
    """A layer whose gradient is a thousand times as long does not drown the others."""
    g = np.ones(PLAN.D, dtype=F32)
    g[:50] = 1000
    for name in CODES:
        method = methods.make("rbd", basis_of(), Settings(1.0, coefficients=name)).method
        proposal, _ = method.propose(Linear(g), DescentState(THETA, 0, THETA[:0]), 0, method.init_local())
        a, found = basis_of().project(g, 0), method.decode(proposal.payload[None])[0]
        for k in range(PLAN.K):
            x, y = a[PLAN.directions(k)], found[PLAN.directions(k)]
            assert np.abs(y).max() == pytest.approx(np.abs(x).max() if name == "int8" else np.abs(x).mean(), rel=1e-6)


# Runs by hand.


@pytest.mark.compiled
@pytest.mark.parametrize("method", ["rbd", "fpd"])
@pytest.mark.parametrize(("name", "exchange"), THREE)
def test_replicas_go_by_what_was_sent(name: str, exchange: str, method: str) -> None:
    """The sender too: the same weights as those of floats that happen to be what was decoded."""
    settings = Settings(0.1, momentum=0.5, workers=3, exchange=exchange, coefficients=name)
    coded = methods.make(method, basis_of(), settings).start(THETA, 0)
    plain = methods.make(method, basis_of(), Settings(0.1, 0.5, 1, 3, exchange)).start(THETA, 0)
    for _ in range(STEPS):
        found = [coded.propose(Quadratic(PLAN.D), w, coded.method.init_local())[0] for w in range(3)]
        assert all(not proposal.update.size for proposal in found)
        payloads = np.stack([proposal.payload for proposal in found])
        coded, plain = coded.step(payloads), plain.step(coded.method.decode(payloads))
        assert same(coded.theta, plain.theta)
    assert not same(coded.theta, THETA)


@pytest.mark.compiled
@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize(("name", "exchange"), THREE)
@pytest.mark.parametrize("how", [{}, *HOW.values()], ids=["plain", *HOW])
def test_journals_repeat(how: dict[str, Any], name: str, exchange: str, combine: str) -> None:
    """With and without the updates that workers have of themselves."""
    run = Coded(name, exchange, combine=combine, **how)
    replica = run.replicas[0]
    for payloads, theta in zip(run.sent, run.thetas[1:], strict=True):
        replica = replica.step(payloads)
        assert same(replica.theta, theta)


class Coded(Run):
    """A run of three workers by hand."""

    def __init__(self, name: str, exchange: str, steps: int = STEPS, **more: Any) -> None:
        self.settings = Settings(0.1, workers=3, exchange=exchange, coefficients=name, **more)
        super().__init__(self.settings, basis_of(), Quadratic(PLAN.D), steps, THETA)

    def gradient(self, t: int, worker: int) -> np.ndarray:
        return Quadratic(PLAN.D).loss_and_gradient(self.thetas[t], t, worker)[1]


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "exchange"), THREE)
def test_a_memory_does_not_know_what_was_sent(name: str, exchange: str) -> None:
    """m <- beta m + (1 - beta) g, whatever became of it."""
    run = Coded(name, exchange, memory=0.9)
    for t, worker in itertools.product(range(STEPS), range(3)):
        expected = averaged(run.kept[t][worker].kept, run.gradient(t, worker), 0.9)
        assert same(run.kept[t + 1][worker].kept, expected)


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "exchange"), THREE)
def test_with_feedback_no_gradient_is_lost(name: str, exchange: str) -> None:
    """What is kept is less by what was really sent: updates and what is kept add up to all gradients, to rounding."""
    run = Coded(name, exchange, steps=30, feedback=True)
    total = sum(float(F32(0.1)) * run.gradient(t, w).astype(np.float64) for t in range(30) for w in range(3))
    kept = sum(local.kept.astype(np.float64) for local in run.kept[-1])
    moved = THETA.astype(np.float64) - run.thetas[-1]
    assert np.abs(moved + kept - total).max() <= 30 * 3 * 2.0**-21
    assert np.abs(kept).max() > 1e-3


@pytest.mark.parametrize("name", CODES)
def test_what_is_kept_is_less_by_what_was_decoded(name: str) -> None:
    """To the bit, and the update goes with the proposal where it is one of a basis of the worker's own."""
    method = methods.make("rbd", basis_of(), Settings(0.1, coefficients=name, feedback=True)).method
    proposal, after = method.propose(Quadratic(PLAN.D), method.init_state(THETA, 0), 0, method.init_local())
    e = (F32(0.1) * proposal.gradient).astype(F32)
    u = basis_of().reconstruct(method.decode(proposal.payload[None])[0], 0)
    assert same(after.kept, e - (contraction(basis_of()) * u).astype(F32))
    assert same(proposal.update, u)


@pytest.mark.compiled
@pytest.mark.parametrize("family", ["normal", "rademacher", "srht"])
def test_what_is_kept_of_signs_does_not_grow(family: str) -> None:
    """As <c, sent> = |sent|^2 for the best multiple of the signs, a step of feedback shortens what is kept."""
    basis = basis_of(compartments.whole(100, d=60), family)
    method = methods.make("rbd", basis, Settings(1e-30, coefficients="sign", feedback=True)).method
    local = method.init_local()._replace(kept=vector(1, 100))
    lengths = []
    for t in range(60):
        lengths.append(float(np.linalg.norm(local.kept)))
        _, local = method.propose(Linear(np.zeros(100, dtype=F32)), method.init_state(vector(8, 100), t), 0, local)
    assert all(after < before * 1.001 for before, after in itertools.pairwise(lengths))
    assert lengths[-1] < lengths[0] / 2


# Runs of the trainer.


class Fixed:
    """A gradient whose signs along an orthogonal basis are the bits of some words: any bits can be sent."""

    D = 64
    WORDS = (0x7F800001, 0xFFFFFFFF)  # a signalling NaN, and a NaN of all bits: arithmetic would change the first

    def __init__(self) -> None:
        signs = np.unpackbits(np.array(self.WORDS, dtype="<u4").view(np.uint8), bitorder="little")
        self.a = np.where(signs, -1, 1).astype(F32)

    def initial(self, seed: int) -> np.ndarray:
        return np.zeros(self.D, dtype=F32)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        return 1.0, rbd.Basis(D=self.D, d=self.D, family="srht", backend=BACKEND).reconstruct(self.a, step, worker)


def test_bits_that_are_no_numbers_survive(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """From the worker to the journal and back, in words that as floats are NaN."""
    config = rbd.Config(dims=64, family="srht", coefficients="sign", lr=0.5, steps=3, workers=2, log_every=1)
    run = rbd.fit(config, Fixed(), out=tmp_path / "run")
    expected = [[*Fixed.WORDS, 0x3F800000, 0x3F800000]] * 2  # signs, the scale 1, the loss 1
    assert [bits(record).tolist() for record in journaled(Folder(tmp_path / "run"))] == [expected] * 3
    again = rbd.open_run(tmp_path / "run", Fixed())
    assert (again.steps, "3 steps repeated" in again.verify()) == (3, True)
    assert same(again.theta(3), run.theta)
    assert again.history.loss.tolist() == [1, 1, 1]
    (first, *_) = lines(Folder(tmp_path / "run"), "step")
    assert first["coordinates"] == {"mean": Fixed().a.mean(), "std": pytest.approx(Fixed().a.std()), "largest": 1}
    assert list(recwarn) == []


SMALL = (*TINY, "--dims", 60, "--compartments", "layer", "--net", "mlp:64-8-10", "--log-every", 1, "--steps", 6)


@pytest.mark.compiled
@pytest.mark.parametrize(("name", "exchange"), THREE)
def test_a_run_repeats_and_counts_its_bytes(name: str, exchange: str, tmp_path: Path) -> None:
    """The journal holds what was sent, in as few bytes; a run cut anywhere goes on to the same weights."""
    flags = ["--workers", 3, "--exchange", exchange, "--coefficients", name, "--family", "srht"]
    flags += ["--memory", 0.9] if name == "sign" else ["--feedback"]
    run = trained(tmp_path / "run", *SMALL, *flags)
    assert status([run.folder, "--verify"], replay.main) == 0
    n, scales = (20, 2) if exchange == "split" else (60, 2)
    words = -(-n * CODES[name].bits // 32) + scales
    assert {row.shape for row in journaled(run)} == {(3, words + 1)}
    assert [line["bytes_per_step"] for line in lines(run, "step")] == [4 * (words + 2)] * 6
    assert result(run)["bytes_per_step"] == 4 * (words + 2)
    assert run.journal.stat().st_size == 40 + 6 * (HEAD.size + 3 * 4 * (words + 1) + CHAIN)
    expected = sha(run), final(run).tobytes()
    for size in (40, 333, run.journal.stat().st_size - 5):
        for left in (*run.checkpoints, run.folder / "result.json", run.folder / "final.npz"):
            left.unlink()
        with run.journal.open("r+b") as file:
            file.truncate(size)
        assert (sha(resumed(run)), final(run).tobytes()) == expected


@pytest.mark.compiled
def test_killed_and_resumed(tmp_path: Path) -> None:
    """A real process and kill -9."""
    flags = (*SMALL, "--coefficients", "sign", "--feedback", "--workers", 2, "--steps", 150)
    whole, run = trained(tmp_path / "whole", *flags), Folder(tmp_path / "run")
    with started(*flags, "--quiet", "--out", run.folder) as process:
        assert wait_until(journal_reaches(run, whole.journal.stat().st_size / 2), process)
        process.kill()
    assert not (run.folder / "result.json").exists()
    assert sha(resumed(run)) == sha(whole)
    assert run.journal.read_bytes() == whole.journal.read_bytes()


def test_the_digest_has_the_setting() -> None:
    assert len({configs.make({"coefficients": name}).digest for name in COEFFICIENTS}) == 3


@pytest.mark.parametrize("name", CODES)
def test_a_step_that_gives_no_numbers_is_named(name: str) -> None:
    """The check looks at what was decoded: words that are NaN are fine, scales that are not numbers are not."""

    class Infinite(Fixed):
        def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
            loss, g = super().loss_and_gradient(theta, step, worker)
            return loss, g * F32(np.inf if (step, worker) == (2, 1) else 1)

    config = rbd.Config(dims=64, family="srht", coefficients=name, lr=0.5, steps=9, workers=2)
    with pytest.raises(rbd.RunError, match=r"step 2 fails with learning rate 0\.5: the loss of worker 1 is nan"):
        rbd.fit(config, Infinite())


def test_a_scale_that_is_too_large_for_its_codes_is_named() -> None:
    """127 s is above all floats where s is the largest of them."""
    sharing = BasisSharing(basis_of(), Settings(1.0, coefficients="int8"))
    payload = sharing.encode(np.ones(PLAN.d, dtype=F32), 0)
    payload[sharing.code_words] = np.finfo(F32).max
    assert np.isinf(sharing.decode(payload, 0)[0])


@pytest.mark.compiled
def test_a_forged_scale_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All chain values made anew: what is no number is named by its step."""
    run = trained(tmp_path / "run", *SMALL, "--coefficients", "sign")
    rows = journaled(run)[2].copy()
    rows[0, -2] = np.nan
    rewrite_journal(run, 2, rows)
    refused(
        capsys, [run.folder, "--verify"], "damaged at step 2", "some of its numbers are not finite", command=replay.main
    )


# What is refused.


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--coefficients", "int4"], ["coefficients 'int4' is unknown, expected one of float32, int8, sign"]),
        (
            ["--coefficients", "sign", "--transforms", "ranks", "--transforms", "top:6"],
            ["transforms are ranks, top:6 beside coefficients sign, expected one of the two", "leave transforms or"],
        ),
        (["--coefficients", "int8", "--transforms", "raw"], ["transforms are raw beside coefficients int8"]),
        (
            ["--coefficients", "sign", "--method", "nes"],
            ["coefficients is 'sign' and would have no effect, expected method rbd or fpd and not nes"],
        ),
        (["--coefficients", "float32", "--method", "sgd"], ["coefficients is 'float32' and would have no effect"]),
    ],
)
def test_what_is_refused(
    flags: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, [*flags, "--out", tmp_path / "run"], *words)
    assert not (tmp_path / "run").exists()


def test_nes_sends_floats() -> None:
    settings = Settings(1.0, coefficients="sign")
    assert [methods.make(name, basis_of(), settings).method.payload_size for name in ("nes", "rbd")] == [45, 2 + PLAN.K]


@pytest.mark.compiled
def test_a_run_that_goes_on_with_nes_sends_floats_there(tmp_path: Path) -> None:
    """Where each direction costs a loss, there is nothing to gain by fewer bits."""
    flags = ("--coefficients", "sign", "--switch", "1:nes:1", "--switch", "2:fpd:0.1", "--epochs", 3)
    run = trained(tmp_path / "run", *TINY, "--dims", 33, *flags)
    assert [phase["bytes_per_step"] for phase in result(run)["phases"]] == [4 * (3 + 2), 4 * (33 + 2), 4 * (3 + 2)]
    assert status([run.folder, "--verify"], replay.main) == 0


# Real ranks.


@pytest.mark.compiled
def test_bytes_at_the_side_of_mpi(tmp_path: Path) -> None:
    """What a rank hands to MPI at a step is, for each of its workers, 1 or 8 bits a coefficient in place of 32, a
    scale, a loss and a request to stop."""
    require_mpi(tmp_path)
    found = job(2, (FIT, "counted"), tmp_path, RBD_REF_RANKS_PER_NODE="1").ended()
    assert (found.status, found.err) == (0, ""), found.text
    handed = [json.loads((tmp_path / f"rank-{rank}.txt").read_text()) for rank in range(2)]
    for workers, sent in zip((3, 2), handed, strict=True):
        assert sent["float32"] == [4 * workers * (7968 + 2)] * 3
        assert sent["int8"] == [4 * workers * (7968 // 4 + 1 + 2)] * 3
        assert sent["sign"] == [4 * workers * (7968 // 32 + 1 + 2)] * 3
