"""`rbd_torch.RBD`: the steps of rbd_ref's method to the bit; groups, types, states; what torch's users expect of it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbd_ref import methods
from rbd_ref._check import NotFiniteError
from rbd_ref._types import Float32Array
from rbd_ref.basis import Basis
from rbd_ref.methods.settings import Settings
from rbd_ref.spec.compartments import Plan, whole
from rbd_ref.spec.plan_names import parse_cut, parse_dims, plan_of_tensors
from rbd_torch import RBD, engines
from rbd_torch.exchange import Form
from strategies import vector
from test_torch_functional import default_dtype, device_path  # noqa: F401
from tools import bits

pytestmark = pytest.mark.compiled
SHAPES = ((7, 9), (9,), (), (300, 5))
D = 7 * 9 + 9 + 1 + 1500


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Four tensors, of which one is not contiguous."""
    flat = torch.from_numpy(vector(1, D))
    parts = [part.view(shape) for part, shape in zip(flat.split([63, 9, 1, 1500]), SHAPES, strict=True)]
    return [nn.Parameter(part.to(dtype).t().contiguous().t() if part.ndim == 2 else part.to(dtype)) for part in parts]


def flat(tensors: list[Any]) -> Float32Array:
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors]).numpy()


def target(step: int, worker: int) -> Float32Array:
    return vector(100 + 10 * step + worker, D)


def take_turn(optimizer: RBD, held: list[nn.Parameter], step: int, worker: int = 0) -> None:
    """g = theta - target."""
    g = torch.from_numpy(flat(held) - target(step, worker))
    for parameter, part in zip(held, g.split([p.numel() for p in held]), strict=True):
        parameter.grad = part.view(parameter.shape).to(parameter.dtype)
    optimizer.step()


class Bowl:
    """The same problem for rbd_ref."""

    def loss_and_gradient(self, theta: Float32Array, step: int, worker: int) -> tuple[float, Float32Array]:
        return 0.0, theta - target(step, worker)


def by_rbd_ref(plan: Plan, steps: int, **given: Any) -> Float32Array:
    """theta of rbd_ref's own method."""
    basis = Basis(plan, 5, given.pop("family", "srht"))
    replica = methods.make("rbd", basis, Settings(**given)).start(vector(1, D), t=0)
    local = [replica.method.init_local() for _ in range(given.get("workers", 1))]
    for _ in range(steps):
        found = [replica.propose(Bowl(), worker, kept) for worker, kept in enumerate(local)]
        local = [kept for _, kept in found]
        replica = replica.step(np.stack([proposal.payload for proposal, _ in found]))
    return replica.theta


SETTINGS: list[dict[str, Any]] = [
    {},
    {"family": "normal"},
    {"memory": 0.9},
    {"momentum": 0.9, "redraw": 2},
    {"memory": 0.5, "momentum": 0.5, "coefficients": "int8"},
    {"coefficients": "sign"},
    *({"workers": 3, "exchange": exchange, "memory": 0.5} for exchange in ("shared", "independent", "split")),
    {"workers": 2, "exchange": "split", "coefficients": "int8", "family": "rademacher"},
    {"workers": 2, "exchange": "independent", "coefficients": "sign", "combine": "sum"},
]


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_steps_are_those_of_rbd_ref(given: dict[str, Any]) -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.3, dims=30, seed=5, compartments="tensor", **given)
    for step in range(4):
        for worker in range(given.get("workers", 1)):
            before = flat(held)
            take_turn(optimizer, held, step, worker)
        assert not np.array_equal(before, flat(held))
    plan = plan_of_tensors([p.numel() for p in held], parse_dims(30), parse_cut("tensor"))
    expected = by_rbd_ref(plan, 4, rate=0.3, **({"combine": "mean"} | given))
    np.testing.assert_array_equal(bits(flat(held)), bits(expected))


def test_weights_move_when_all_workers_had_their_turn() -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.3, dims=30, workers=3)
    start = flat(held)
    for worker in range(2):
        take_turn(optimizer, held, 0, worker)
        assert np.array_equal(flat(held), start)
        assert optimizer.steps == 0
    take_turn(optimizer, held, 0, 2)
    assert not np.array_equal(flat(held), start)
    assert optimizer.steps == 1


@pytest.mark.usefixtures("device_path")
@pytest.mark.parametrize("given", [{}, {"memory": 0.5, "momentum": 0.5, "coefficients": "sign"}], ids=str)
def test_on_other_devices_nothing_of_size_D_crosses_to_the_host(given: dict[str, Any]) -> None:
    parameter = nn.Parameter(torch.zeros(20_000))
    parameter.grad = torch.ones(20_000)
    optimizer = RBD([parameter], lr=0.1, dims=50, weight_decay=0.1, **given)
    for _ in range(3):
        optimizer.step()
    assert parameter.abs().max() > 0


def test_updates_have_the_same_bits_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the same coefficients, as replicas on unlike devices are: memory, momentum and types as well."""
    found = []
    for engine in (engines.Kernels(), MixedEngine()):
        monkeypatch.setattr(engines, "engine_for", lambda device, engine=engine: engine)
        held = parameters()
        optimizer = RBD(held, lr=0.3, dims=30, memory=0.5, momentum=0.5, exchange="shared", workers=2)
        for turn in range(6):
            take_turn(optimizer, held, turn // 2, turn % 2)
        found.append(flat(held))
    np.testing.assert_array_equal(bits(found[0]), bits(found[1]))


class MixedEngine(engines.Kernels):
    """Projects as a CPU does, rebuilds as other devices do."""

    def reconstruct(self, draw: Any, a: Tensor) -> Tensor:
        return engines.Tensors(torch.device("cpu")).reconstruct(draw, a)


# Groups.


def test_groups_have_their_own_dims_and_rates() -> None:
    """One plan after the other; the rate 0 keeps a group where it is."""
    held = parameters()
    groups = [
        {"params": held[:2], "dims": 10, "lr": 0.5},
        {"params": held[2:], "dims": "each:4", "compartments": "tensor", "memory": 0.5},
    ]
    optimizer = RBD(groups, lr=0.25, dims=99, seed=5)
    take_turn(optimizer, held, 0)
    plan = Plan((72, 1, 1500), (10, 1, 4))
    g = vector(1, D) - target(0, 0)
    g[72:] *= np.float32(0.5)
    eta = np.repeat(np.float32([0.5, 0.25]), [72, D - 72])
    expected = vector(1, D) - eta * Basis(plan, 5, "srht").descend(g, 0)[1]
    np.testing.assert_array_equal(bits(flat(held)), bits(expected))


def test_a_group_that_is_added_later_goes_on_with_the_steps() -> None:
    held = parameters()
    optimizer = RBD(held[:3], lr=0.1, dims=3)
    for parameter in held:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.add_param_group({"params": held[3:], "dims": 20})
    before = flat(held[3:])
    optimizer.step()
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]
    assert not np.array_equal(flat(held[3:]), before)


def test_frozen_empty_and_repeated_parameters_have_no_place_of_their_own() -> None:
    held = [*parameters(), nn.Parameter(torch.empty(0, 3))]
    held[1].requires_grad_(False)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = RBD([*held, held[0]], lr=0.5, dims=10, seed=5)
    for parameter in held:
        parameter.grad = torch.ones_like(parameter)
    start = flat(held)
    optimizer.step()
    assert optimizer._layout.plan == whole(D - 9, 10)
    assert np.array_equal(flat(held)[63:72], start[63:72])
    assert not np.array_equal(flat(held)[:63], start[:63])


def test_a_parameter_is_trained_once_it_is_thawed() -> None:
    held = parameters()
    held[0].requires_grad_(False)
    optimizer = RBD(held, lr=0.5, dims=10, memory=0.5)
    start = flat(held)
    for parameter in held:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    remembered = optimizer.state[held[3]]["memory_0"].clone()
    held[0].requires_grad_(True)
    optimizer.step()
    assert not np.array_equal(flat(held)[:63], start[:63])
    assert torch.equal(optimizer.state[held[3]]["memory_0"], remembered * 0.5 + 0.5)


@pytest.mark.parametrize("given", [{}, {"memory": 0.5, "momentum": 0.5}], ids=str)
def test_a_parameter_without_gradient_stays_as_it_is(given: dict[str, Any]) -> None:
    """And counts as 0 for the others; so do its memory and momentum."""
    held = parameters()
    optimizer = RBD(held, lr=0.5, dims=10, seed=5, **given)
    take_turn(optimizer, held, 0)
    state = {name: value.clone() for name, value in optimizer.state[held[1]].items()}
    start = flat(held)
    take = [parameter.grad for parameter in held]
    held[1].grad = None
    optimizer.step()
    assert np.array_equal(flat(held)[63:72], start[63:72])
    assert not np.array_equal(flat(held)[:63], start[:63])
    assert all(torch.equal(optimizer.state[held[1]][name], value) for name, value in state.items())
    if not given:
        g = flat(take)
        g[63:72] = 0
        u = Basis(whole(D, 10), 5, "srht").descend(g, 1)[1]
        expected = start - np.float32(0.5) * u
        np.testing.assert_array_equal(bits(flat(held)[:63]), bits(expected[:63]))


def test_without_any_gradient_no_step_is_taken() -> None:
    optimizer = RBD(parameters(), lr=0.5)
    optimizer.step()
    assert optimizer.steps == 0


# Types.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_projected_in_float32_and_rounded_last(dtype: torch.dtype) -> None:
    held = parameters(dtype)
    optimizer = RBD(held, lr=0.3, dims=30, seed=5)
    before = [p.detach().clone() for p in held]
    take_turn(optimizer, held, 0)
    g = flat([p.grad for p in held])
    moved = torch.from_numpy(np.float32(0.3) * Basis(whole(D, 30), 5, "srht").descend(g, 0)[1])
    wide = torch.promote_types(dtype, torch.float32)
    for start, parameter, part in zip(before, held, moved.split([63, 9, 1, 1500]), strict=True):
        expected = (start.to(wide) - part.view(start.shape).to(wide)).to(dtype)
        assert torch.equal(parameter.detach(), expected)


@pytest.mark.usefixtures("default_dtype")
def test_the_default_type_of_torch_changes_nothing() -> None:
    """Steps, with all that is kept in float32."""
    held = parameters()
    optimizer = RBD(held, lr=0.3, dims=30, seed=5, memory=0.5, momentum=0.5)
    for step in range(3):
        take_turn(optimizer, held, step)
    given = {"rate": 0.3, "memory": 0.5, "momentum": 0.5, "combine": "mean"}
    np.testing.assert_array_equal(bits(flat(held)), bits(by_rbd_ref(whole(D, 30), 3, **given)))


# States.


def resumed(given: dict[str, Any], dtype: torch.dtype, save: Callable[[dict[str, Any]], Any]) -> tuple[Any, Any]:
    """Weights after six turns, without a break and with one after the fourth."""
    held = parameters(dtype)
    optimizer = RBD(held, lr=0.3, dims=30, **given)
    for turn in range(4):
        take_turn(optimizer, held, turn)
    again = [nn.Parameter(p.detach().clone()) for p in held]
    other = RBD(again, lr=0.1, dims=30, **given)
    other.load_state_dict(save(optimizer.state_dict()))
    for turn in range(4, 6):
        take_turn(optimizer, held, turn)
        take_turn(other, again, turn)
    assert other.steps == optimizer.steps
    return flat(held), flat(again)


def on_disk(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "given",
    [{}, {"memory": 0.9}, {"momentum": 0.9, "coefficients": "int8"}, {"memory": 0.5, "workers": 3}],
    ids=str,
)
def test_a_loaded_state_goes_on_to_the_same_bits(given: dict[str, Any], dtype: torch.dtype) -> None:
    """Also between the turns of three workers, and with what is kept in float32 whatever the parameters are."""
    for save in (on_disk, copy.deepcopy):
        one, other = resumed(given, dtype, save)
        np.testing.assert_array_equal(bits(one), bits(other))


def test_copies_and_pickles_go_on_to_the_same_bits() -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.3, dims=30, memory=0.5, momentum=0.5)
    take_turn(optimizer, held, 0)
    copies = [copy.deepcopy((held, optimizer)), pickle.loads(pickle.dumps((held, optimizer)))]
    take_turn(optimizer, held, 1)
    for again, other in copies:
        take_turn(other, again, 1)
        np.testing.assert_array_equal(bits(flat(again)), bits(flat(held)))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"seed": 6}, "the state has seed 5 in group 0 and this optimizer 6"),
        ({"dims": 31}, "the state has dims 30 in group 0 and this optimizer 31"),
        ({"compartments": "tensor"}, "the state has compartments 'whole' in group 0"),
        ({"family": "normal"}, "the state has family 'srht' in group 0"),
        ({"exchange": "split"}, "the state has exchange 'shared' in group 0"),
    ],
)
def test_a_state_of_other_bases_is_refused(given: dict[str, Any], sentence: str) -> None:
    state = RBD(parameters(), lr=0.3, dims=30, seed=5).state_dict()
    other = RBD(parameters(), lr=0.3, **({"dims": 30, "seed": 5} | given))
    with pytest.raises(ValueError, match=sentence) as raised:
        other.load_state_dict(state)
    assert "make the optimizer with" in str(raised.value)


def test_a_state_of_other_shapes_or_groups_is_refused() -> None:
    held = parameters()
    state = RBD(held, lr=0.3).state_dict()
    with pytest.raises(ValueError, match="shapes 7x9 9 scalar 300x5 in group 0 and this optimizer has 9x7 9 scalar"):
        RBD([held[0].detach().t().requires_grad_(), *held[1:]], lr=0.3).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has 1 parameter groups and this optimizer 2"):
        RBD([{"params": held[:1]}, {"params": held[1:]}], lr=0.3).load_state_dict(state)


# What torch has beside optimizers.


def model_and_data() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(64, 20)
    return model, x, x.sum(1, keepdim=True).sin()


def test_schedulers_and_zero_grad_and_accumulated_gradients() -> None:
    """A rate of 0 moves nothing; two halves of a batch are the batch."""
    found = []
    for parts in (1, 2):
        model, x, y = model_and_data()
        optimizer = RBD(model.parameters(), lr=1.0, dims=100)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step > 0))
        start = flat(list(model.parameters()))
        for step in range(3):
            optimizer.zero_grad()
            for some in range(parts):
                loss = (model(x[some::parts]) - y[some::parts]).square().mean() / parts
                loss.backward()
            optimizer.step()
            assert np.array_equal(flat(list(model.parameters())), start) == (step == 0)
            scheduler.step()
        found.append(flat(list(model.parameters())))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-5)


def test_grad_scaler() -> None:
    """Scaled by a power of two: the same bits as without; a step with infinities neither moves nor advances."""
    found = []
    for scaled in (False, True):
        model, x, y = model_and_data()
        optimizer = RBD(model.parameters(), lr=1.0, dims=100, memory=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale((model(x) - y).square().mean()).backward()
            if scaled and step == 2:
                held = list(model.parameters())
                good = held[0].grad.clone()
                held[0].grad.fill_(torch.inf)
                scaler.step(optimizer)
                scaler.update(2.0**10)
                assert optimizer.steps == 2
                held[0].grad.copy_(good)
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.steps == 4
        found.append(flat(list(model.parameters())))
    np.testing.assert_array_equal(bits(found[0]), bits(found[1]))


def test_compiled_models() -> None:
    """What torch.compile makes of a model has the model's own parameters."""
    model, x, y = model_and_data()
    compiled = torch.compile(model, backend="eager")
    optimizer = RBD(compiled.parameters(), lr=1.0, dims=100)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (compiled(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_closures_and_tied_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    optimizer = RBD(model.parameters(), lr=0.5, dims=10)
    x = torch.randn(32, 8)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(40)]
    assert losses[-1] < losses[0] / 2
    assert model[1].weight is model[0].weight
    assert optimizer._layout.plan.D == 64 + 8 + 8


def test_weight_decay_and_maximize_are_those_of_sgd() -> None:
    """With as many orthogonal directions as elements the update is the gradient, up to rounding."""
    for given in ({"weight_decay": 0.1}, {"maximize": True}, {"weight_decay": 0.1, "maximize": True}):
        one, other = (nn.Parameter(torch.from_numpy(vector(1, 256))) for _ in range(2))
        rbd, sgd = RBD([one], lr=0.1, dims=256, **given), torch.optim.SGD([other], lr=0.1, **given)
        for step in range(3):
            one.grad = torch.from_numpy(vector(5 + step, 256))
            other.grad = one.grad.clone()
            rbd.step()
            sgd.step()
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_compression_stats() -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.1, dims=10)
    assert optimizer.compression_stats().compress_rate == 0
    take_turn(optimizer, held, 0)
    rate, before, after = optimizer.compression_stats()
    assert (before, after) == (D, 10 + 2)  # a status, and a word of flags of gradients
    assert rate == before / after


def test_messages_keep_every_bit() -> None:
    form = Form(parameters=40, payload_size=3)
    payload = np.array([0x7FA00001, 0xFFFFFFFF, 5], dtype=np.uint32).view(np.float32)
    present = [k % 3 == 0 for k in range(40)]
    rows = np.stack([form.write(2, present, payload), form.write(0, [False] * 40, payload)])
    found = form.read(rows)
    assert found.statuses == [2, 0]
    assert found.present == present
    assert np.array_equal(found.payloads.view(np.uint32), np.stack([payload, payload]).view(np.uint32))


# Mistakes.


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    [
        ({"lr": -1.0}, ValueError, "lr is -1.0, expected 0 or more"),
        ({"lr": 1e39}, ValueError, "lr is 1e"),
        ({"lr": "fast"}, TypeError, "lr is 'fast'"),
        ({"dims": 0}, ValueError, "dims .0. cannot be read, expected N directions"),
        ({"compartments": "layer"}, ValueError, "compartments .layer. cannot be read, expected whole, tensor"),
        ({"compartments": "even:0"}, ValueError, "compartments .even:0. cannot be read"),
        ({"memory": 1.0}, ValueError, "memory is 1.0, expected 0 or more and less than 1"),
        ({"momentum": 1.0}, ValueError, "momentum is 1.0"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay is -0.1"),
        ({"redraw": 0}, ValueError, "redraw is 0"),
        ({"seed": 2**64}, ValueError, "seed is 18446744073709551616"),
        ({"workers": 0}, ValueError, "workers is 0"),
        ({"exchange": "gossip"}, ValueError, "exchange 'gossip' is unknown"),
        ({"combine": "max"}, ValueError, "combine 'max' is unknown"),
        ({"coefficients": "int4"}, ValueError, "coefficients 'int4' is unknown"),
        ({"family": "cauchy"}, ValueError, "cauchy"),
        ({"process_group": "gloo"}, TypeError, "process_group is str, expected a process group"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence(given: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence) as raised:
        RBD(parameters(), **({"lr": 0.1} | given))
    assert "\n" not in str(raised.value)


def test_groups_have_one_basis() -> None:
    held = parameters()
    with pytest.raises(ValueError, match="group 1 has seed 3 and group 0 0, expected one basis for all groups"):
        RBD([{"params": held[:1]}, {"params": held[1:], "seed": 3}], lr=0.1)


def test_complex_and_sparse_are_refused() -> None:
    with pytest.raises(TypeError, match=r"dtype torch.complex64, expected a real floating type: .*view_as_real"):
        RBD([nn.Parameter(torch.zeros(3, dtype=torch.complex64))], lr=0.1)
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = RBD(table.parameters(), lr=0.1)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=r"a gradient of shape \(10, 3\) is sparse, expected a dense one"):
        optimizer.step()


@pytest.mark.parametrize("held", [torch.ones(3), torch.ones(0, requires_grad=True)], ids=["frozen", "empty"])
def test_nothing_to_train_is_no_step_and_said(held: Tensor) -> None:
    """As with torch's optimizers, for which it is no error."""
    held.grad = torch.ones_like(held)
    optimizer = RBD([held], lr=0.1)
    with pytest.warns(UserWarning, match="no parameter requires a gradient, expected one at least") as told:
        assert optimizer.step(lambda: 7.0) == 7.0
    assert [one.filename for one in told] == [__file__]
    assert optimizer.steps == 0
    assert torch.equal(held.detach(), torch.ones_like(held))


def test_too_few_directions_for_the_tensors() -> None:
    held = parameters()
    held[0].grad = torch.ones_like(held[0])
    with pytest.raises(ValueError, match="a total of 3 directions does not reach 4 compartments"):
        RBD(held, lr=0.1, dims=3, compartments="tensor").step()


def test_gradients_that_are_not_finite_move_nothing() -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.1)
    for value in (torch.nan, torch.inf, 3e38):
        start = flat(held)
        for parameter in held:
            parameter.grad = torch.full_like(parameter, value)
        with pytest.raises(NotFiniteError, match="the gradient of worker 0 has values that are not finite, or is too"):
            optimizer.step()
        assert np.array_equal(flat(held), start)
        assert optimizer.steps == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_not_remembered(value: float, dtype: torch.dtype) -> None:
    """It would stay in the memory for ever; who leaves such a step out goes on as if it had not been."""
    found = []
    for disturbed in (True, False):
        held = parameters(dtype)
        optimizer = RBD(held, lr=0.1, memory=0.5)
        take_turn(optimizer, held, 0)
        if disturbed:
            held[3].grad[7, 3] = value
            with pytest.raises(NotFiniteError, match="the gradient of worker 0 has values that are not finite"):
                optimizer.step()
        take_turn(optimizer, held, 1)
        found.append(flat(held))
    np.testing.assert_array_equal(bits(found[0]), bits(found[1]))


def test_large_gradients_are_remembered() -> None:
    """Finite ones whose sum is not."""
    held = nn.Parameter(torch.zeros(8))
    held.grad = torch.full((8,), 1e38)
    optimizer = RBD([held], lr=1e-38, dims=8, memory=0.99)
    optimizer.step()
    assert optimizer.steps == 1
    assert torch.isfinite(held).all()


def test_parameters_of_two_devices_are_refused() -> None:
    held = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3, device="meta"))]
    with pytest.raises(ValueError, match="parameters are on cpu and meta, expected one device"):
        RBD(held, lr=0.1).step()


def test_frozen_between_turns_is_refused() -> None:
    held = parameters()
    optimizer = RBD(held, lr=0.1, workers=2)
    take_turn(optimizer, held, 0)
    held[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="parameters were frozen, moved or added"):
        optimizer.step()
