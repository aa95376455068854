"""The backend `jax`: random bases by XLA, to the bit, and gradients of the paper's networks by `jax.grad`.

`backend` holds the class; `rounding`, `families`, `sweep` and `hadamard` hold what it compiles, and `networks` the
gradients. Importing this package does not import JAX; making a `JaxBackend` does.
Tests: tests/test_jax_backend.py.
"""
