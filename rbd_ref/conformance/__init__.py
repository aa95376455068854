"""The conformance suite: what a backend must do, level by level, as plain functions that need no test runner.

    python -m rbd_ref.conformance --rbd-backend NAME_OR_package.module:Class
    pytest -p rbd_ref.conformance.plugin --pyargs rbd_ref.conformance --rbd-backend NAME_OR_package.module:Class

suite.py holds what a check is and runs them; words.py, directions.py and operations.py are the levels L0, L1 and L2,
descents.py L3 to L5; golden.py writes the vectors that they compare with. A further level is one more module, named in
`suite.MODULES`.
Tests: tests/test_conformance.py, and tests/test_broken_backends.py, which feeds the suite backends that are wrong.
May import: backend, basis, kernels, methods, models, runs, spec.
"""
