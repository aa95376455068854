"""The backend `cuda`: random bases on an NVIDIA GPU by numba-cuda. README.md says how far it has been tested.

Importing this package imports neither numba-cuda nor CUDA: `rbd_cuda.backend:CudaBackend` does when it is made.
"""
