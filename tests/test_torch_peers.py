"""torch's own optimizer checks on `rbd_torch.RBD`: the inputs, schedulers and errors of
`torch.testing._internal.common_optimizers`, and the checks that TestOptimRenewed of torch's test/test_optim.py makes
with them, one test each. torch's wheel has the first but not the second, so that the checks are written anew here.

`LEFT_OUT` has those that do not apply, and why.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rbd_torch import RBD

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the test modules of torch itself
    from torch.testing._internal import common_optimizers as torchs

pytestmark = pytest.mark.compiled

LEFT_OUT = {
    "test_complex, test_complex_2d": "complex parameters are refused (test_errors has the sentence)",
    "test_rosenbrock_sparse": "sparse gradients are refused (tests/test_torch_optimizer.py has the sentence)",
    "test_foreach_*, test_peak_memory_foreach, test_defaults_changed_to_foreach": "there is one implementation",
    "test_fused_*, test_differentiable_*": "there are no such implementations; a step has no derivative",
    "test_cuda_graph_*, test_capturable_*": "coefficients pass through the host at every step",
    "test_*_multigpu, test_mixed_device_dtype": "parameters of several devices are refused with a sentence",
    "test_state_dict_with_cuda_params, test_grad_scaling_*": "needs a GPU (GradScaler on a CPU: test_torch_optimizer)",
    "test_tensor_betas_*, test_less_mem_beta_zero_*": "options of Adam",
    "test_closure_requirement, test_lbfgs_*": "a closure is optional here",
    "test_second_order_optims_return_consistent_types": "of LBFGS",
    "test_cpu_load_state_dict": "of fused and capturable implementations",
    "test_set_default_dtype_works_with_foreach": "test_torch_optimizer has the default type, which changes nothing",
    "test_load_nontensor_step": "the step is a number in all states",
    "test_optim_infos_do_not_specify_global_cliquey_kwargs": "of torch's own list of inputs",
}


def optim_inputs(device: str = "cpu", dtype: torch.dtype | None = None) -> list[Any]:
    """Each option once, as torch lists them for its own."""
    return [
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.05}, desc="default"),
        torchs.OptimizerInput(params=None, kwargs={"lr": torch.tensor(0.05)}, desc="Tensor lr"),
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.05, "dims": 7, "family": "normal"}, desc="normal"),
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.05, "memory": 0.5}, desc="memory"),
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.01, "momentum": 0.9}, desc="momentum"),
        torchs.OptimizerInput(
            params=None, kwargs={"lr": 0.05, "momentum": 0.5, "weight_decay": 0.1, "memory": 0.5}, desc="decay"
        ),
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.05, "maximize": True}, desc="maximize"),
        torchs.OptimizerInput(params=None, kwargs={"lr": 0.05, "coefficients": "int8"}, desc="int8"),
    ]


INFO = torchs.OptimizerInfo(
    RBD,
    optim_inputs_func=optim_inputs,
    supported_impls=(),
    not_og_supported_flags=("maximize",),
    supports_complex=False,
    supports_multiple_devices=False,
    optim_error_inputs_func=torchs.get_error_inputs_for_all_optims,
)
INPUTS = INFO.optim_inputs_func(device="cpu")
each_input = pytest.mark.parametrize("options", [one.kwargs for one in INPUTS], ids=[one.desc for one in INPUTS])


class Problem:
    """|W x + b|^2, as torch's own checks have it."""

    def __init__(self, contiguous: bool = True, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(3)
        if contiguous:
            self.weight = Parameter(torch.randn(10, 5, dtype=dtype))
            self.bias = Parameter(torch.randn(10, dtype=dtype))
        else:
            self.weight = Parameter(torch.randn(10, 5, 2, dtype=dtype)[..., 0])
            self.bias = Parameter(torch.randn(10, 2, dtype=dtype)[..., 0])
        self.input = torch.randn(5, dtype=dtype)

    @property
    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]

    def closure(self, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
        def fn() -> Tensor:
            optimizer.zero_grad()
            loss = (self.weight.mv(self.input) + self.bias).square().sum()
            loss.backward()
            return loss

        return fn


def same_values(one: Any, other: Any) -> bool:
    """Of state dicts."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    return bool(one == other)


def error_inputs() -> Iterator[Any]:
    yield from INFO.optim_error_inputs_func(device="cpu", dtype=torch.float32)
    complex_input = torchs.OptimizerInput([torch.zeros(2, dtype=torch.complex64)], {}, desc="complex")
    yield torchs.ErrorOptimizerInput(complex_input, error_type=TypeError, error_regex="expected a real floating type")


@pytest.mark.parametrize("given", list(error_inputs()), ids=lambda given: given.optimizer_error_input.desc)
def test_errors(given: Any) -> None:
    one = given.optimizer_error_input
    warned = issubclass(given.error_type, Warning)
    with (pytest.warns if warned else pytest.raises)(given.error_type, match=given.error_regex):
        RBD(one.params, **({"lr": 0.1} | one.kwargs))


@pytest.mark.parametrize("schedulers", [(), *INFO.scheduler_inputs], ids=["constant", "schedulers"])
@pytest.mark.parametrize("contiguous", [True, False])
@each_input
def test_forloop_goes_right_direction(options: dict[str, Any], contiguous: bool, schedulers: Any) -> None:
    problem = Problem(contiguous)
    optimizer = RBD(problem.parameters, **copy.deepcopy(options))
    made = [make(optimizer) for make in schedulers]
    fn = problem.closure(optimizer)
    first = fn().item()
    for _ in range(20):
        loss = optimizer.step(fn)
        for scheduler in made:
            by_loss = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(*([loss.item()] if by_loss else []))
    assert (fn().item() > first) == options.get("maximize", False)


@each_input
def test_param_group_with_lrscheduler_goes_right_direction(options: dict[str, Any]) -> None:
    problem = Problem()
    groups = [{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}]
    optimizer = RBD(groups, **copy.deepcopy(options))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, gamma=0.9, step_size=10)
    fn = problem.closure(optimizer)
    first = fn().item()
    for _ in range(20):
        optimizer.step(fn)
        scheduler.step()
    assert (fn().item() > first) == options.get("maximize", False)


def test_param_groups_lr_and_weight_decay() -> None:
    """A group's own options are used, and others' are not: a group with rate 0 stays, one with decay shrinks."""
    problem = Problem()
    kept = problem.bias.detach().clone()
    optimizer = RBD([{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.0}], lr=0.05)
    fn = problem.closure(optimizer)
    before = problem.weight.detach().clone()
    for _ in range(5):
        optimizer.step(fn)
    assert torch.equal(problem.bias, kept)
    assert not torch.equal(problem.weight, before)
    problem = Problem()
    decayed = [{"params": [problem.weight], "weight_decay": 1.0}, {"params": [problem.bias]}]
    optimizer = RBD(decayed, lr=0.05)
    sizes = [parameter.norm().item() for parameter in problem.parameters]
    for _ in range(50):
        for parameter in problem.parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert problem.weight.norm().item() < 0.5 * sizes[0]
    assert problem.bias.norm().item() == sizes[1]


def test_tensor_lr() -> None:
    """A tensor of one element is a number, and schedulers may write to it."""
    found = []
    for lr in (0.05, torch.tensor(0.05), torch.tensor([0.05])):
        problem = Problem()
        optimizer = RBD(problem.parameters, lr=lr)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            optimizer.step(problem.closure(optimizer))
            scheduler.step()
        found.append(problem.weight.detach().clone())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


@each_input
def test_step_is_noop_when_params_have_no_grad(options: dict[str, Any]) -> None:
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    before = copy.deepcopy(problem.parameters)
    optimizer.step()
    assert same_values(before, problem.parameters)


@each_input
def test_step_is_noop_when_params_require_no_grad(options: dict[str, Any]) -> None:
    """torch's check of the same name has such parameters; we warn as well."""
    held = [torch.ones(2, 3) for _ in range(2)]
    optimizer = RBD(held, **options)
    with pytest.warns(UserWarning, match="no step is taken"):
        assert optimizer.step(lambda: 1.0) == 1.0
    assert same_values(held, [torch.ones(2, 3) for _ in range(2)])


@each_input
def test_step_is_noop_for_zero_grads(options: dict[str, Any]) -> None:
    if options.get("weight_decay"):
        return
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    before = copy.deepcopy(problem.parameters)
    for parameter in problem.parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert same_values(before, problem.parameters)


@each_input
def test_grads_are_never_inplaced_into(options: dict[str, Any]) -> None:
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    problem.closure(optimizer)()
    before = [parameter.grad.clone() for parameter in problem.parameters]
    versions = [parameter.grad._version for parameter in problem.parameters]
    optimizer.step()
    assert same_values(before, [parameter.grad for parameter in problem.parameters])
    assert versions == [parameter.grad._version for parameter in problem.parameters]


@each_input
def test_optimizer_can_be_printed(options: dict[str, Any]) -> None:
    optimizer = RBD(Problem().parameters, **options)
    assert "family: " in repr(optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@each_input
def test_state_dict_deterministic(options: dict[str, Any], dtype: torch.dtype) -> None:
    """A loaded optimizer goes on alike, the dict that it was loaded from stays as it is, and both save the same."""
    problem = Problem(dtype=dtype)
    optimizer = RBD(problem.parameters, **copy.deepcopy(options))
    for _ in range(5):
        optimizer.step(problem.closure(optimizer))
    other = copy.deepcopy(problem)
    again = RBD(other.parameters, **copy.deepcopy(options))
    state = copy.deepcopy(optimizer.state_dict())
    loaded = copy.deepcopy(state)
    again.load_state_dict(loaded)
    for _ in range(5):
        optimizer.step(problem.closure(optimizer))
        again.step(other.closure(again))
        assert same_values(problem.parameters, other.parameters)
    assert same_values(state, loaded)
    assert same_values(optimizer.state_dict(), again.state_dict())


@each_input
def test_can_load_older_state_dict(options: dict[str, Any]) -> None:
    """States without the flags that torch counts as newer, and without what we add."""
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    optimizer.step(problem.closure(optimizer))
    state = copy.deepcopy(optimizer.state_dict())
    for flag in (*INFO.not_og_supported_flags, "shapes"):
        for group in state["param_groups"]:
            group.pop(flag, None)
    optimizer.load_state_dict(state)
    optimizer.step(problem.closure(optimizer))
    assert optimizer.steps == 2


@pytest.mark.parametrize(("saved_named", "loaded_named"), [(True, True), (True, False), (False, True)])
def test_can_load_from_to_named_state_dict(saved_named: bool, loaded_named: bool) -> None:
    problem = Problem()
    named = [("weight", problem.weight), ("bias", problem.bias)]
    optimizer = RBD(named if saved_named else problem.parameters, lr=0.1, memory=0.5)
    optimizer.step(problem.closure(optimizer))
    other = RBD(named if loaded_named else problem.parameters, lr=0.1, memory=0.5)
    other.load_state_dict(optimizer.state_dict())
    other.step(problem.closure(other))
    assert other.steps == 2


@each_input
def test_save_load_equality_with_weights_only(options: dict[str, Any]) -> None:
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    for _ in range(3):
        optimizer.step(problem.closure(optimizer))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert same_values(torch.load(file, weights_only=True), optimizer.state_dict())


@each_input
def test_deepcopy_copies_all_public_attrs(options: dict[str, Any]) -> None:
    problem = Problem()
    optimizer = RBD(problem.parameters, **options)
    optimizer.step(problem.closure(optimizer))

    def public(one: object) -> set[str]:
        return {name for name in vars(one) if not name.startswith("_")}

    assert public(copy.deepcopy(optimizer)) == public(optimizer)


def test_non_empty_state() -> None:
    """What is kept is there after the first step, in the shape of its parameter."""
    problem = Problem()
    optimizer = RBD(problem.parameters, lr=0.1, memory=0.5, momentum=0.5)
    optimizer.step(problem.closure(optimizer))
    for parameter in problem.parameters:
        assert {name: value.shape for name, value in optimizer.state[parameter].items()} == {
            "memory_0": parameter.shape,
            "momentum_buffer": parameter.shape,
        }


def test_step_hooks() -> None:
    """Of the instance and of all optimizers, before and after, in order."""
    problem, calls = Problem(), []
    optimizer = RBD(problem.parameters, lr=0.1)
    handles = [
        register_optimizer_step_pre_hook(lambda *_: calls.append("all, before")),
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
        register_optimizer_step_post_hook(lambda *_: calls.append("all, after")),
    ]
    optimizer.step(problem.closure(optimizer))
    for handle in handles:
        handle.remove()
    optimizer.step(problem.closure(optimizer))
    assert calls == ["all, before", "before", "after", "all, after"]


def test_state_dict_hooks() -> None:
    """Hooks see what is saved and loaded, and may replace it; the last one decides."""
    problem = Problem()
    optimizer = RBD(problem.parameters, lr=0.1, memory=0.5)
    optimizer.step(problem.closure(optimizer))
    calls = []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    state = optimizer.state_dict()
    assert state["more"] == 1

    def doubled(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        changed = copy.deepcopy(state)
        for values in changed["state"].values():
            values["memory_0"] *= 2
        return changed

    optimizer.register_load_state_dict_pre_hook(doubled)
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("before loading"), prepend=True)
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("after loading"))
    optimizer.load_state_dict(state)
    assert calls == ["before saving", "before loading", "after loading"]
    assert torch.equal(optimizer.state[problem.weight]["memory_0"], 2 * state["state"][0]["memory_0"])


def test_hooks_may_keep_what_they_like_in_the_state() -> None:
    """As torch's own hooks do in these checks: the step that follows does not take it for that of a parameter."""
    problem = Problem()
    optimizer = RBD(problem.parameters, lr=0.1, memory=0.5)
    optimizer.step(problem.closure(optimizer))
    optimizer.register_load_state_dict_post_hook(lambda one: one.state.update(loaded=True))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step(problem.closure(optimizer))
    assert optimizer.state["loaded"] is True
    assert optimizer.steps == 2


def test_repeated_groups_are_saved_alike() -> None:
    """torch's test_state_dict_deterministic repeats its groups at the end."""
    optimizer = RBD(Problem().parameters, lr=0.1)
    once = optimizer.state_dict()["param_groups"]
    optimizer.param_groups.extend(optimizer.param_groups)
    assert optimizer.state_dict()["param_groups"] == once * 2


def test_what_is_left_out_has_a_reason() -> None:
    here = {name for name in globals() if name.startswith("test_")}
    assert all(LEFT_OUT.values())
    assert not here & {name for names in LEFT_OUT for name in names.split(", ")}
