"""Kernels called at an address: compiled once, and not again inside every kernel that calls them.

Numba copies the code of a function into each function that calls it, and LLVM optimises every copy: with four calls one
inside the other the innermost is compiled five times. A call at an address ends that. It also leaves the choice of the
function to the caller at run time, so only what a run uses is compiled at all.

    SIGNATURE = types.void(types.int64, types.uint32[::1])
    call = caller(lambda *_: SIGNATURE)         # call(address, (n, words)) inside a kernel
    where = address(some_kernel, SIGNATURE)     # compiles some_kernel, or loads it

The signature may depend on the types of the arguments, which `caller` is told.

Tests: tests/test_pointers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic

from rbd_ref.kernels._jit import config

# Where kernels run as plain Python an address is a place in this list.
_functions: list[Callable[..., Any]] = []


def _plain_address(kernel: Callable[..., Any], signature: Any) -> int:
    """`address` where kernels run as plain Python."""
    if kernel not in _functions:
        _functions.append(kernel)
    return _functions.index(kernel)


def _plain_call(address: int, arguments: tuple[Any, ...]) -> None:
    """What `caller` makes where kernels run as plain Python."""
    _functions[address](*arguments)


def _compiled_address(kernel: Any, signature: Any) -> int:  # pragma: no cover
    """The address of a kernel's machine code for arguments of this signature, in this process."""
    kernel.compile(signature)
    made = kernel.overloads[signature.args]
    return int(made.library.get_pointer_to_function(made.fndesc.llvm_func_name))


def _compiled_caller(signature_of: Callable[..., Any]) -> Any:  # pragma: no cover
    """An intrinsic that casts its arguments as an ordinary call would, and passes on what the kernel raises."""

    def typing(_: Any, address: Any, arguments: Any) -> Any:
        signature = signature_of(*arguments)

        def generate(context: Any, builder: Any, types: Any, values: Any) -> Any:
            place, together = values
            convention = context.call_conv
            pointer = convention.get_function_type(signature.return_type, signature.args).as_pointer()
            given = [
                context.cast(builder, builder.extract_value(together, n), found, wanted)
                for n, (found, wanted) in enumerate(zip(arguments, signature.args, strict=True))
            ]
            function = builder.inttoptr(place, pointer)
            status, _ = convention.call_function(builder, function, signature.return_type, signature.args, given)
            with builder.if_then(status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return signature.return_type(address, arguments), generate

    return intrinsic(typing)


address: Callable[[Any, Any], int] = _plain_address if config.DISABLE_JIT else _compiled_address
caller: Callable[[Any], Any] = (lambda signature_of: _plain_call) if config.DISABLE_JIT else _compiled_caller
