"""rbd_mpi: training on the ranks of MPI, the paper's Algorithm 1 on the right.

    launch         from processes that a launcher started to a `World`
    communicator   rank, size, allgather, broadcast, barrier, abort
    waiting        waits that end: after a timeout a roll is called, and those who do not answer are named
    node           the ranks of one machine: shared memory, and updates that they rebuild together
    lifecycle      from the start to the end of all ranks, whatever happens to one of them

Found by the entry point `mpi` of the group `rbd_ref.exchanges`, when an MPI launcher started the process.
Tests: tests/test_mpi.py, tests/ft_mpi.py.
"""

from rbd_mpi.launch import connect

__all__ = ["connect"]
