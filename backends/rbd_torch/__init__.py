"""Random bases descent in torch, on any device that torch names: `rbd_ref` finds it as the backend `torch`.

    python -m rbd_ref.conformance --rbd-backend torch

RBD_TORCH_DEVICE names the device (cpu), RBD_TORCH_COMPILE=1 compiles the generator. This file holds no code, so that
nothing is imported before it is needed. Tests: tests/test_torch_backend.py.
"""
