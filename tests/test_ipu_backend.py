"""The backend `ipu`: the graphs with two runtimes, the dialect, and the loader's words. `make conformance` has it pass
the suite with onnxruntime."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, defs, shape_inference

from rbd_ipu import device, graphs
from rbd_ipu.backend import IpuBackend
from rbd_ref import backend as registry
from rbd_ref.conformance.cases import draw_at, pseudo_random
from rbd_ref.spec.compartments import explicit
from rbd_ref.spec.families import FAMILIES
from rbd_ref.spec.operations import Draw, directions, reconstruct
from rbd_ref.spec.prng import threefry2x32
from tools import bits, run_python

SMALL, LARGE = graphs.Shape(4, 8, 256), graphs.Shape(4, 4, 4096)
NAME = "rbd_ipu.backend:IpuBackend"
NUMBERS = {TensorProto.UINT32: np.uint32, TensorProto.FLOAT: np.float32}


def models() -> Iterator[tuple[str, ModelProto]]:
    """Every graph that the backend can ask for, of srht's greater lengths only the first."""
    for n in (512, 16384):
        yield f"words-{n}", graphs.words_model(n)
    for forward in (True, False):
        for shape in ((8, 256), (1, 4096), (1, 8192)):
            yield f"srht-{forward}-{shape[1]}", graphs.srht_model(*shape, forward)
    for family in FAMILIES[:-1]:
        for shape in (SMALL, LARGE):
            name = f"{family}-{shape.tile}"
            yield f"directions-{name}", graphs.directions_model(family, shape)
            yield f"project-{name}", graphs.project_model(family, shape, False)
            yield f"squares-{name}", graphs.project_model(family, shape, True)
            yield f"reconstruct-{name}", graphs.reconstruct_model(family, shape)


MODELS = dict(models())


def drawn(model: ModelProto) -> dict[str, np.ndarray]:
    """Random inputs for a graph; a window is never empty."""
    rng, inputs = np.random.default_rng(3), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [each.dim_value for each in kind.shape.dim]
        if kind.elem_type == TensorProto.FLOAT:
            inputs[value.name] = rng.standard_normal(shape, dtype=np.float32)
        else:
            inputs[value.name] = rng.integers(0, 2**32, shape, dtype=np.uint32)
    for name, numbers in {"length": (1, 255), "longer": (0, 40), "first": (0, 2000), "count": (0, 257)}.items():
        if name in inputs:
            inputs[name] = rng.integers(*numbers, inputs[name].shape).astype(inputs[name].dtype)
    return inputs


def small_draw(family: str) -> Draw:
    return draw_at(explicit(1500, [(0, 3, 2), (3, 200, 5), (200, 1500, 3)]), family, "unit", 7, 3, 5)


def right(backend: IpuBackend, draw: Draw) -> None:
    """Directions and update to the bit, and a project that undoes a direction's own."""
    assert np.array_equal(bits(backend.directions(draw, range(draw.plan.d))), bits(directions(draw)))
    a = pseudo_random(1, draw.plan.d)
    assert np.array_equal(bits(backend.reconstruct(draw, a)), bits(reconstruct(draw, a)))
    assert backend.project(draw, directions(draw)[3])[3] == pytest.approx(1, rel=1e-5)


@pytest.fixture(scope="module")
def backend() -> IpuBackend:
    return IpuBackend()


@pytest.mark.parametrize("name", MODELS)
def test_graphs_are_valid_onnx(name: str) -> None:
    onnx.checker.check_model(MODELS[name])
    onnx.checker.check_model(device.with_functions(MODELS[name]), full_check=True)


@pytest.mark.parametrize("name", MODELS)
def test_only_operators_and_types_of_the_dialect_occur(name: str) -> None:
    model = MODELS[name]
    assert {(each.domain, each.version) for each in model.opset_import} == {("", 11), ("ai.graphcore", 1)}
    typed = shape_inference.infer_shapes(device.with_functions(model), strict_mode=True).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*typed.value_info, *typed.output)}
    for node in model.graph.node:
        assert kinds[node.output[0]] in graphs.DIALECT[node.domain, node.op_type], node.op_type


def test_the_graphs_use_the_whole_dialect() -> None:
    used = {(node.domain, node.op_type) for model in MODELS.values() for node in model.graph.node}
    assert used == set(graphs.DIALECT)


def test_all_shapes_are_fixed() -> None:
    for model in MODELS.values():
        for value in (*model.graph.input, *model.graph.output):
            assert all(each.dim_value > 0 for each in value.type.tensor_type.shape.dim)


def test_the_dialect_is_read_alike_in_the_opset_that_onnxruntime_is_told() -> None:
    for domain, name in graphs.DIALECT:
        if domain == "":
            old, new = (defs.get_schema(name, version) for version in (graphs.OPSET, device.FUNCTION_OPSET))
            assert [each.name for each in old.inputs] == [each.name for each in new.inputs], name
            assert set(old.attributes) <= set(new.attributes), name


def test_onnxruntime_gets_the_same_graph() -> None:
    for model in MODELS.values():
        before = model.SerializeToString(deterministic=True)
        same = device.with_functions(model).graph.SerializeToString(deterministic=True)
        assert same == model.graph.SerializeToString(deterministic=True)
        assert before == model.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", [name for name in MODELS if "4096" not in name and "8192" not in name])
def test_both_runtimes_give_the_same_bits(name: str) -> None:
    inputs = drawn(MODELS[name])
    results = [device.runtime(each)(MODELS[name])(inputs) for each in ("onnxruntime", "reference")]
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_evaluator_computes_the_specification(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.VARIABLE, "reference")
    right(IpuBackend(), small_draw(family))


def test_graphs_are_loaded_once(backend: IpuBackend) -> None:
    draw = small_draw("normal")
    first = backend.project(draw, pseudo_random(1, draw.plan.D))
    before = dict(backend._programs)
    assert np.array_equal(backend.project(draw, pseudo_random(1, draw.plan.D)), first)
    assert backend._programs == before


def test_the_end_of_the_longest_compartment() -> None:
    """Windows and blocks so far out that a float would not tell them apart."""
    size, window = 2**32 - 5, 3
    first, windows = (size - 200) // 256 * 256, -(-size // window)
    length, longer = divmod(size, windows)
    numbers = {"k0": 1, "k1": 2, "i": 3, "first": first, "length": length, "longer": longer}
    cells = {name: np.full(SMALL.cells, number, dtype=np.uint32) for name, number in numbers.items()}
    (phi,) = device.runtime("onnxruntime")(MODELS["directions-sparse-256"])(cells)
    expected = np.zeros(256, dtype=np.float32)
    for v in range(windows - 100, windows):
        x = int(threefry2x32(np.array([1, 2], np.uint32), np.array([3, v // 2], np.uint32))[v % 2])
        place = v * length + min(v, longer) + ((x >> 8) * (length + (v < longer)) >> 24) - first
        if place >= 0:
            expected[place] = 1 - 2 * (x & 1)
    assert np.array_equal(bits(phi[0, 0, : size - first]), bits(expected[: size - first]))


# The loader.


def sentence(monkeypatch: pytest.MonkeyPatch, runtime: str) -> str:
    """What whoever asks for the backend reads."""
    monkeypatch.setenv(device.VARIABLE, runtime)
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        registry.load(NAME)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_a_missing_library_is_one_sentence(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    said = sentence(monkeypatch, "onnxruntime")
    assert f"the backend ipu needs {library}, which is not here: pip install 'rbd-ref[ipu]'" in said


def test_an_unknown_runtime_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said = sentence(monkeypatch, "gpu")
    assert "RBD_IPU_RUNTIME 'gpu' is unknown, expected one of onnxruntime, popart, reference" in said


def test_no_sdk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popart", None)
    said = sentence(monkeypatch, "popart")
    assert "RBD_IPU_RUNTIME=popart needs PopART of Graphcore's Poplar SDK, which is not here" in said


def test_an_unrelated_package_is_not_taken_for_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "popart.py").write_text("def paint(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "popart", raising=False)
    try:
        said = sentence(monkeypatch, "popart")
    finally:
        sys.modules.pop("popart", None)
    assert "which is here only as an unrelated package of that name" in said


def test_neither_the_package_nor_its_backend_imports_a_library() -> None:
    code = "import sys, rbd_ipu.backend; print([name for name in sys.modules if name.startswith('onnx')])"
    assert run_python("-c", code).stdout.strip() == "[]"


@dataclass
class Session:
    """Answers the calls of PopART's `InferenceSession`, with ONNX's evaluator behind them."""

    fnModel: bytes  # noqa: N815
    dataFlow: Mapping[str, str]  # noqa: N815
    deviceInfo: str  # noqa: N815
    patterns: str
    prepared: bool = False

    def prepareDevice(self) -> None:
        self.prepared = True

    def weightsFromHost(self) -> None:
        assert self.prepared

    def initAnchorArrays(self) -> dict[str, np.ndarray]:
        outputs = ModelProto.FromString(self.fnModel).graph.output
        kinds = {each.name: each.type.tensor_type for each in outputs if each.name in self.dataFlow}
        shapes = {name: [each.dim_value for each in kind.shape.dim] for name, kind in kinds.items()}
        return {name: np.empty(shapes[name], NUMBERS[kind.elem_type]) for name, kind in kinds.items()}

    def run(self, step: tuple[dict[str, np.ndarray], dict[str, np.ndarray]]) -> None:
        inputs, anchors = step
        results = device.on_reference(ModelProto.FromString(self.fnModel))(inputs)
        for anchor, result in zip(anchors.values(), results, strict=True):
            anchor[...] = result


def stand_in(devices: list[str], sessions: list[Session]) -> ModuleType:
    """A module with what the loader uses of PopART."""

    def session(**arguments: Any) -> Session:
        sessions.append(Session(**arguments))
        return sessions[-1]

    popart: Any = ModuleType("popart")
    manager = SimpleNamespace(acquireAvailableDevice=lambda n: devices.pop() if devices else None)
    popart.DeviceManager = lambda: manager
    popart.InferenceSession = session
    popart.DataFlow = lambda batches, anchors: anchors
    popart.AnchorReturnType = popart.Patterns = str
    popart.PatternsLevel = SimpleNamespace(Minimal="minimal")
    popart.PyStepIO = lambda inputs, anchors: (inputs, anchors)
    return popart


def test_the_loader_hands_popart_the_same_bytes_and_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No SDK is here: this shows what the loader calls, not that PopART would do it."""
    sessions: list[Session] = []
    monkeypatch.setitem(sys.modules, "popart", stand_in(["ipu 0"], sessions))
    monkeypatch.setenv(device.VARIABLE, "popart")
    right(IpuBackend(), small_draw("uniform"))
    assert {(each.deviceInfo, each.patterns) for each in sessions} == {("ipu 0", "minimal")}
    content = {each.fnModel for each in sessions}
    assert MODELS["reconstruct-uniform-256"].SerializeToString() in content
    assert content <= {model.SerializeToString() for model in MODELS.values()}


def test_no_free_ipu_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popart", stand_in([], []))
    assert "PopART finds no free IPU" in sentence(monkeypatch, "popart")
