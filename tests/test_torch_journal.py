"""The journal of `rbd_torch.RBD`, and `rbd_torch.replay`: a model from its base and a file of coefficients."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rbd_ref.runs.files import RunError
from rbd_ref.runs.journal import Journal
from rbd_torch import RBD, engines, replay
from test_torch_functional import default_dtype  # noqa: F401

pytestmark = pytest.mark.compiled


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: RBD, turns: range) -> None:
    """Steps whose gradients follow from their number; in some a parameter has none, and the rate changes."""
    for turn in turns:
        optimizer.zero_grad()
        x = torch.from_numpy(np.random.default_rng(turn).standard_normal((8, 6), dtype=np.float32))
        model(x).square().mean().backward()
        if turn % 3 == 1:
            model[0].bias.grad = None
        for group in optimizer.param_groups:
            group["lr"] = 1.0 / (1 + turn)
        optimizer.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9, "memory": 0.5, "redraw": 2},
    {"workers": 2, "exchange": "independent", "coefficients": "int8"},
    {"workers": 2, "exchange": "split", "compartments": "tensor", "coefficients": "sign", "dims": 8},
]


@pytest.mark.parametrize("engine", [engines.Kernels, lambda: engines.Tensors(torch.device("cpu"))])
@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_a_model_is_rebuilt_to_the_bit(
    given: dict[str, Any], engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any step, on a CPU and as on other devices; frozen weights, missing gradients and changing rates included."""
    model = make_model()
    model[2].bias.requires_grad_(False)
    base = copy.deepcopy(model)
    path = tmp_path / "run.rbd"
    optimizer = RBD(model.parameters(), **({"lr": 1.0, "dims": 7, "journal": path} | given))
    share = given.get("workers", 1)
    train(model, optimizer, range(3 * share))
    middle = copy.deepcopy(model)
    train(model, optimizer, range(3 * share, 5 * share))
    made = engine()
    monkeypatch.setattr(engines, "engine_for", lambda device: made)
    base[2].bias.requires_grad_(True)
    for step, expected in ((3, middle), (None, model)):
        rebuilt = copy.deepcopy(base)
        assert replay(rebuilt, path, step=step) == (step or 5)
        assert equal(rebuilt, expected)
    assert replay(base, path, step=0) == 0
    assert not equal(base, model)


@pytest.mark.usefixtures("default_dtype")
def test_the_default_type_of_torch_changes_nothing(tmp_path: Path) -> None:
    model = make_model().float()
    base, path = copy.deepcopy(model), tmp_path / "run.rbd"
    train(model, RBD(model.parameters(), lr=1.0, dims=7, momentum=0.5, journal=path), range(3))
    assert replay(base, path) == 3
    assert equal(base, model)


def test_groups_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    """Named parameters in any groups, or the parameters themselves in the order of the optimizer."""
    model = make_model()
    base = copy.deepcopy(model)
    named = dict(model.named_parameters())
    groups = [[(name, named[name]) for name in names] for names in (("2.weight", "0.bias"), ("2.bias", "0.weight"))]
    with_names = RBD([{"params": group} for group in groups], lr=1.0, dims=4, journal=tmp_path / "names.rbd")
    train(model, with_names, range(3))
    rebuilt = copy.deepcopy(base)
    replay(rebuilt, tmp_path / "names.rbd")
    assert equal(rebuilt, model)

    model = copy.deepcopy(base)
    order = ("2.weight", "0.bias", "2.bias", "0.weight")
    train(model, RBD([model.get_parameter(name) for name in order], lr=1.0, journal=tmp_path / "order.rbd"), range(3))
    with pytest.raises(RunError, match=r"a parameter has shape \[5, 6\] and type float32 where .* has \[3, 5\]"):
        replay(copy.deepcopy(base), tmp_path / "order.rbd")
    replay([base.get_parameter(name) for name in order], tmp_path / "order.rbd")
    assert equal(base, model)


def test_a_loaded_state_cuts_the_journal_back_to_its_step(tmp_path: Path) -> None:
    """What was journaled after the state was saved is taken again."""
    path, model = tmp_path / "run.rbd", make_model()
    base = copy.deepcopy(model)
    optimizer = RBD(model.parameters(), lr=1.0, dims=7, momentum=0.5, journal=path)
    train(model, optimizer, range(3))
    state, saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model)
    train(model, optimizer, range(3, 7))
    optimizer.close()
    again = RBD(saved.parameters(), lr=1.0, dims=7, momentum=0.5, journal=path)
    again.load_state_dict(state)
    train(saved, again, range(3, 5))
    assert replay(base, path) == 5
    assert equal(base, saved)


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
import os, signal, torch
from pathlib import Path
from rbd_torch import RBD
from test_torch_journal import make_model, train
folder, model = Path(sys.argv[1]), make_model()
optimizer = RBD(model.parameters(), lr=1.0, dims=7, memory=0.5, momentum=0.5, journal=folder / "run.rbd")
if (folder / "state.pt").exists():
    saved = torch.load(folder / "state.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for turn in range(optimizer.steps, 9):
    train(model, optimizer, range(turn, turn + 1))
    if turn % 3 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "new.pt")
        (folder / "new.pt").replace(folder / "state.pt")
    if turn == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), folder / "end.pt")
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    """kill -9 after step 5, when the state of step 4 was saved; a run that was never killed has the same bits."""
    for kill in (5, -1):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent), str(kill)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == (0 if kill < 0 else -signal.SIGKILL), result.stderr
    resumed = make_model()
    resumed.load_state_dict(torch.load(tmp_path / "end.pt", weights_only=True))
    whole = make_model()
    train(whole, RBD(whole.parameters(), lr=1.0, dims=7, memory=0.5, momentum=0.5), range(9))
    assert equal(resumed, whole)
    rebuilt = make_model()
    assert replay(rebuilt, tmp_path / "run.rbd") == 9
    assert equal(rebuilt, whole)


@pytest.fixture
def written(tmp_path: Path) -> tuple[nn.Module, Path]:
    """A base and the journal of four steps."""
    model, path = make_model(), tmp_path / "run.rbd"
    base = copy.deepcopy(model)
    optimizer = RBD(model.parameters(), lr=1.0, dims=7, journal=path)
    train(model, optimizer, range(4))
    optimizer.close()
    return base, path


def test_a_torn_end_is_left_out_with_a_warning(written: tuple[nn.Module, Path]) -> None:
    base, path = written
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match="ends with a torn record"):
        assert replay(base, path) == 3


def test_damage_is_named_and_moves_nothing(written: tuple[nn.Module, Path]) -> None:
    base, path = written
    before = copy.deepcopy(base)
    places = [record.end for record in Journal(path).records()]
    data = bytearray(path.read_bytes())
    data[places[1] + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match="is damaged at step 2"):
        replay(base, path)
    assert equal(base, before)


def test_other_models_files_and_steps_are_refused(written: tuple[nn.Module, Path], tmp_path: Path) -> None:
    base, path = written
    for model, sentence in (
        (nn.Linear(6, 5), "the model has 2 parameters and .* 4"),
        (make_model().double(), "type float64 where .* float32"),
    ):
        with pytest.raises(RunError, match=sentence):
            replay(model, path)
    with pytest.raises(RunError, match="has 4 steps, expected 5 at least"):
        replay(base, path, step=5)
    with pytest.raises(RunError, match="cannot be read"):
        replay(base, tmp_path / "nothing.rbd")
    (tmp_path / "text").write_text("no journal at all, but long enough to hold a head")
    with pytest.raises(RunError, match="is no journal"):
        replay(base, tmp_path / "text")


def test_a_journal_is_never_written_over(written: tuple[nn.Module, Path]) -> None:
    base, path = written
    before = path.read_bytes()
    with pytest.raises(RunError, match="is there already, expected a new file"):
        train(base, RBD(base.parameters(), lr=1.0, dims=7, journal=path), range(1))
    assert path.read_bytes() == before


def test_a_journal_of_another_state_is_refused(written: tuple[nn.Module, Path], tmp_path: Path) -> None:
    """One of other coefficients, one that ends too early, and none; nothing is cut off."""
    base, path = written
    before = path.read_bytes()
    optimizer = RBD(base.parameters(), lr=1.0, dims=7, journal=tmp_path / "other.rbd")
    train(base, optimizer, range(5, 8))
    state = optimizer.state_dict()
    (tmp_path / "short.rbd").write_bytes(before[: len(before) // 2])
    for name, sentence in (
        ("run.rbd", "is not the journal of this state: step 3 has another chain value"),
        ("short.rbd", "ends before step 3, which the state has reached"),
        ("nothing.rbd", "cannot be read"),
    ):
        again = RBD(base.parameters(), lr=1.0, dims=7, journal=tmp_path / name)
        again.load_state_dict(state)
        with pytest.raises(RunError, match=sentence):
            train(base, again, range(1))
    assert path.read_bytes() == before


def test_two_optimizers_do_not_write_one_journal(tmp_path: Path) -> None:
    path, model = tmp_path / "run.rbd", make_model()
    optimizer = RBD(model.parameters(), lr=1.0, dims=7, journal=path)
    train(model, optimizer, range(2))
    other = RBD(model.parameters(), lr=1.0, dims=7, journal=path)
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(RunError, match="is being written by another optimizer"):
        train(model, other, range(1))
