"""`rbd_torch.RBD` and `rbd_hook` on two real processes over gloo: replicas hold the same bits, and those of one process
that plays two workers, and of rbd_ref's trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rbd_jax
import rbd_ref as rbd
import torch_ddp_driver as driver
from rbd_ref.runs.journal import Journal
from rbd_ref.spec.operations import directions
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors
from rbd_ref.training.experiment import Experiment
from rbd_torch import RBDState
from tools import ROOT, bits

pytestmark = pytest.mark.compiled
DRIVER = ROOT / "tests" / "torch_ddp_driver.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes has found."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(DRIVER), str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(driver.RANKS)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(driver.RANKS)]


@pytest.fixture
def one_thread() -> Any:
    """Gradients by one thread, as in the two processes: torch's products have other bits with two."""
    before = torch.get_num_threads()
    yield torch.set_num_threads(1)
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("mode", driver.MODES)
def test_two_ranks_one_process_and_the_trainer_of_rbd_ref_have_the_same_weights(
    mode: str, ranks: list[dict[str, Any]]
) -> None:
    assert torch.equal(ranks[0][mode], ranks[1][mode])
    alone = driver.flat(driver.optimizer_case(mode, 0, None, workers=2)[0])
    assert torch.equal(alone, ranks[0][mode])
    trained = rbd.fit(driver.config(mode)).theta
    np.testing.assert_array_equal(bits(trained), bits(ranks[0][mode].numpy()))


def test_only_coefficients_travel(ranks: list[dict[str, Any]]) -> None:
    """Words of a rank in six steps: a status, a word of flags, and 60 floats, codes with scales, or half of these."""
    D = ranks[0]["shared"].numel()
    for mode, words in (("shared", 60), ("independent", 60), ("split", 8 + 4), ("sign", 2 + 4)):
        rate, before, after = ranks[1][f"{mode}, stats"]
        assert (before, rate) == (6 * D, before / after)
        assert after <= 6 * (2 + words)


def test_the_hook_is_plain_ddp_with_as_many_directions_as_parameters(ranks: list[dict[str, Any]]) -> None:
    """All sizes are powers of two: directions are orthogonal."""
    hook = ranks[0]["hook"]
    for name in ("all of srht", "all of srht, feedback"):
        torch.testing.assert_close(hook[name], hook["plain"], rtol=1e-4, atol=1e-6)
        assert torch.equal(hook[name], ranks[1]["hook"][name])
    start = driver.flat(driver.small_model())
    assert not torch.allclose(start, hook["plain"], atol=1e-3)


@pytest.mark.parametrize("name", ["some, feedback", "some, memory", "some"])
def test_the_hook_gives_all_ranks_the_same_bits(name: str, ranks: list[dict[str, Any]]) -> None:
    found = [rank["hook"][name] for rank in ranks]
    assert torch.equal(*found)
    assert not torch.allclose(found[0], ranks[0]["hook"]["plain"], atol=1e-3)


def test_the_hook_remembers_unless_it_is_told_otherwise(ranks: list[dict[str, Any]]) -> None:
    hook = ranks[0]["hook"]
    assert torch.equal(hook["some, by default"], hook["some, memory"])


def test_the_hook_counts_what_it_sends(ranks: list[dict[str, Any]]) -> None:
    """The first of five iterations is sent whole."""
    D = driver.flat(driver.small_model()).numel()
    assert ranks[0]["hook"]["some, stats"][1:] == (5 * D, D + 4 * 150)


def test_the_hook_goes_on_from_a_pickle_to_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["hook"]["hook whole"], rank["hook"]["hook resumed"])
        assert "elements where the state was saved with" in rank["hook"]["hook refused"]


def test_what_feedback_has_not_sent_is_kept(ranks: list[dict[str, Any]]) -> None:
    """What was applied, and the mean of what both keep, add up to ten mean gradients."""
    found = [rank["feedback"] for rank in ranks]
    assert torch.equal(found[0]["applied"], found[1]["applied"])
    mean = sum(one["g"] for one in found) / 2
    kept = sum(one["kept"] for one in found) / 2
    torch.testing.assert_close(found[0]["applied"] + kept, 10 * mean, rtol=1e-4, atol=1e-3)
    assert kept.norm() > 1


@pytest.mark.parametrize("kind", ["memory", "feedback"])
def test_what_the_hook_keeps_outlasts_a_gradient_that_is_not_finite(kind: str, ranks: list[dict[str, Any]]) -> None:
    """GradScaler skips such a step on all ranks, so none may remember it."""
    for rank in ranks:
        before, after = rank["overflow"][kind]
        assert before.norm() > 0
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("settings", "rank 1 has other settings, steps or parameters than rank 0"),
        ("not finite", "the gradient of worker 1 has values that are not finite"),
        ("workers", "workers is 3 for 2 ranks, expected a multiple"),
        ("copied", "this is a copy of an optimizer of 2 ranks, expected its process group"),
    ],
)
def test_mistakes_are_one_sentence_on_all_ranks(case: str, sentence: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert sentence in rank["mistakes"][case]


def test_a_parameter_moves_if_any_rank_has_a_gradient_of_it(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["moved"].tolist() == [True, True, True, False, True, True]


def test_a_state_of_one_process_goes_on_with_two_and_back(ranks: list[dict[str, Any]]) -> None:
    """To the bit with two; back only with the memory of the rank that saved it, which is said."""
    for rank in ranks:
        assert torch.equal(rank["worlds"]["one, then two"], rank["worlds"]["one"])
        assert rank["worlds"]["steps"] == 7
        assert torch.isfinite(rank["worlds"]["two, then one"]).all()
    assert ["the state has no memory_1" in one for one in ranks[0]["worlds"]["said"]] == [True]
    assert ["the state has no memory_0" in one for one in ranks[1]["worlds"]["said"]] == [True]


def test_the_journal_of_two_ranks_is_written_by_the_first(ranks: list[dict[str, Any]]) -> None:
    assert [rank["journal"]["written"] for rank in ranks] == [True, False]
    for rank in ranks:
        assert torch.equal(rank["journal"]["trained"], rank["journal"]["replayed"])


@pytest.mark.parametrize("case", ["no room to begin", "no room for a step"])
def test_all_ranks_hear_that_rank_0_has_no_room_for_its_journal(case: str, ranks: list[dict[str, Any]]) -> None:
    """Nobody waits, no weight moves, and with room again the run goes on as if nothing had been."""
    for rank in ranks:
        said, as_before = rank["full disks"][case]
        assert as_before
        assert "full.rbd cannot be written (File too large), expected a folder with room" in said
        assert said.endswith("with journal=")
        assert rank["full disks"]["same"]
        assert rank["full disks"]["replayed"]


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("no folder", "run.rbd cannot be made (No such file or directory)"),
        ("there already", "there.rbd is there already, expected a new file"),
        ("frozen", "parameters were frozen, moved or added while a journal was written"),
        ("another run", "full.rbd is not the journal of this state: step 1 has another chain value"),
        ("other settings", "frozen.rbd is the journal of other settings, parameters or workers, expected those"),
    ],
)
def test_all_ranks_hear_that_the_journal_of_rank_0_does_not_fit(
    case: str, sentence: str, ranks: list[dict[str, Any]]
) -> None:
    for rank in ranks:
        said, as_before = rank["refused journals"][case]
        assert sentence in said
        assert as_before


@pytest.mark.parametrize("mode", ["shared", "independent"])
def test_jax_has_the_same_weights_from_the_same_coefficients(
    mode: str, ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Those of rbd_ref's journal, whose weights are those of the two ranks."""
    config = driver.config(mode)
    rbd.fit(config, out=tmp_path / "run")
    problem = Experiment(config).problem
    plan = plan_of_tensors([int(np.prod(shape)) for shape in problem.shapes], parse_dims(60), parse_cut("tensor"))
    theta, velocity, momentum = problem.initial(config.seed), np.float32(0), driver.MODES[mode].get("momentum", 0)
    for record in Journal(tmp_path / "run" / "journal.rbd").records():
        sent = record.payloads if mode == "independent" else record.payloads.sum(axis=0, keepdims=True)
        updates = [rbd_jax.reconstruct(plan, a, 3, record.t, w, "srht") for w, a in enumerate(sent)]
        velocity = np.float32(momentum) * velocity + np.asarray(sum(updates[1:], updates[0]))
        theta = theta - np.float32(0.5) * velocity  # rate 1, the mean of two
    np.testing.assert_array_equal(bits(theta), bits(ranks[0][mode].numpy()))


def test_each_parameter_has_a_basis_of_its_own() -> None:
    """Also those of one size, and at every step another."""
    state = RBDState(None, dims="each:2", seed=1)
    state.sizes = [6, 6]
    state.step = 1
    bases = [directions(state.draw(number)) for number in (0, 1)]
    state.step = 2
    bases.append(directions(state.draw(0)))
    assert len({basis.tobytes() for basis in bases}) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dims": 0}, "dims .0. cannot be read"),
        ({"seed": -1}, "seed is -1"),
        ({"memory": 1.0}, "memory is 1.0, expected 0 or more and less than 1"),
        ({"memory": "much"}, "memory is 'much' of type str, expected a number"),
        ({"family": "bernoulli-graphcore", "feedback": True}, "family is bernoulli-graphcore beside feedback"),
        ({"memory": 0.9, "feedback": True}, "memory is 0.9 beside feedback, expected one of them"),
        ({"redraw": 0}, "redraw is 0"),
    ],
    ids=str,
)
def test_mistakes_in_the_state_are_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        RBDState(None, **given)


def test_the_hook_of_the_package_is_one_that_ddp_takes() -> None:
    """DDP compares annotations with types: none may be a string."""
    annotations = __import__("rbd_torch").rbd_hook.__annotations__
    assert annotations["bucket"] is torch.distributed.GradBucket
    assert annotations["return"] == torch.futures.Future[torch.Tensor]
