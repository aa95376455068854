"""rbd_mpi: the exchange of rbd_ref.train over MPI, the paper's Algorithm 1 on the right.

Found by the entry point `mpi` of the group `rbd_ref.exchanges`, when an MPI launcher started the process.
Tests: tests/test_mpi.py.
"""

from rbd_mpi.launch import connect

__all__ = ["connect"]
