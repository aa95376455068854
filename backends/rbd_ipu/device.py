"""Where the graphs run: in onnxruntime or ONNX's reference evaluator on this machine, or on an IPU by PopART.

All three are given the graphs of graphs.py as they are. Only PopART knows the operators of `ai.graphcore`; for
onnxruntime they are added to the model as functions of standard operators, for the reference evaluator as classes.
Tests: tests/test_ipu_backend.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rbd_ref._check import member

if TYPE_CHECKING:
    from onnx import ModelProto

Arrays: TypeAlias = Mapping[str, np.ndarray]
Program: TypeAlias = Callable[[Arrays], list[np.ndarray]]

VARIABLE, DEFAULT = "RBD_IPU_RUNTIME", "onnxruntime"
RUNTIMES = ("onnxruntime", "reference", "popart")
FUNCTION_OPSET, FUNCTION_IR_VERSION = 18, 8  # the first with standard bitwise operators, and with functions
BITWISE = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}


def need(module: str) -> Any:
    """A library of the extra `ipu`, or one sentence about it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"the backend ipu needs {module}, which is not here: pip install 'rbd-ref[ipu]'") from error


def with_functions(model: ModelProto) -> ModelProto:
    """The model with its graph as it is, and the operators of `ai.graphcore` defined by those of opset 18.

    A model has one opset for its graph and its functions, so the graph's number is raised too; graphs.py uses only
    operators whose form is the same from opset 11 to 18.
    """
    from onnx import ModelProto, helper

    defined = ModelProto()
    defined.CopyFrom(model)
    defined.ir_version = FUNCTION_IR_VERSION
    default, graphcore = defined.opset_import
    default.version = FUNCTION_OPSET
    for name in BITWISE:
        node = helper.make_node(name, ["x", "y"], ["z"])
        function = helper.make_function(graphcore.domain, name, ["x", "y"], ["z"], [node], [default])
        defined.functions.append(function)
    return defined


def on_onnxruntime(ort: Any, model: ModelProto) -> Program:
    """One thread, and no optimisation: nothing is fused or reordered."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    content = with_functions(model).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda inputs: list(session.run(None, dict(inputs)))


def on_reference(model: ModelProto) -> Program:
    """ONNX's own evaluator, which is written in NumPy; the model is not changed at all."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    def operator(name: str, function: Callable[..., np.ndarray]) -> type[OpRun]:
        members = {"op_domain": "ai.graphcore", "_run": lambda self, x, y: (function(x, y),)}
        return type(name, (OpRun,), members)

    evaluator = ReferenceEvaluator(model, new_ops=[operator(*item) for item in BITWISE.items()])
    return lambda inputs: list(evaluator.run(None, dict(inputs)))


def sdk() -> Any:
    """Graphcore's PopART, which comes with the Poplar SDK and not by pip; packages of that name on PyPI are others."""
    try:
        popart = import_module("popart")
    except ImportError:
        popart = None
    if not hasattr(popart, "DeviceManager"):
        found = "is not here" if popart is None else "is here only as an unrelated package of that name"
        raise RuntimeError(
            f"{VARIABLE}=popart needs PopART of Graphcore's Poplar SDK, which {found}: "
            f"enable the SDK and install its wheel, or set {VARIABLE}={DEFAULT}"
        )
    return popart


def acquire(popart: Any) -> Any:
    """One IPU, for all graphs."""
    device = popart.DeviceManager().acquireAvailableDevice(1)
    if device is None:
        raise RuntimeError(f"PopART finds no free IPU: free one or set {VARIABLE}={DEFAULT}")
    return device


def on_popart(popart: Any, device: Any, model: ModelProto) -> Program:
    """A session of its own for each graph; of PopART's patterns only those it cannot do without, so that it replaces
    no operation. PopART loads a session's program onto the device again where another one's was loaded since."""
    names = [output.name for output in model.graph.output]
    session = popart.InferenceSession(
        fnModel=model.SerializeToString(),
        dataFlow=popart.DataFlow(1, {name: popart.AnchorReturnType("All") for name in names}),
        deviceInfo=device,
        patterns=popart.Patterns(popart.PatternsLevel.Minimal),
    )
    session.prepareDevice()

    def run(inputs: Arrays) -> list[np.ndarray]:
        anchors = session.initAnchorArrays()
        session.weightsFromHost()
        session.run(popart.PyStepIO({name: np.ascontiguousarray(x) for name, x in inputs.items()}, anchors))
        return [anchors[name] for name in names]

    return run


def runtime(name: str) -> Callable[[ModelProto], Program]:
    """What turns a model into a program; one sentence if it cannot be had."""
    member(VARIABLE, name, RUNTIMES)
    need("onnx")
    if name == "popart":
        popart = sdk()
        return partial(on_popart, popart, acquire(popart))
    return partial(on_onnxruntime, need("onnxruntime")) if name == "onnxruntime" else on_reference
