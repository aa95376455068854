"""The backend `ipu`: a random basis as ONNX graphs that Graphcore's PopART can read; run by onnxruntime elsewhere.

Nothing is imported here, so that who looks at the package needs no ONNX. See README.md for what has been run where.
Tests: tests/test_ipu_backend.py.
"""
