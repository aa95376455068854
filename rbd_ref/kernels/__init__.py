"""Machine code for what spec/ defines, by Numba: the same file names, the same function names, the same bits.

    _jit          how kernels are compiled, and where the machine code is kept
    prng, families, hadamard, operations, random    the twins of the definitions
    tiles         how a stretch of a direction is held, dotted and added
    backend       the backend `numba`, which chooses kernels and threads

May import: spec, backend.
"""
