"""rbd_mpi: training on the ranks of MPI, the paper's Algorithm 1 on the right.

    start          MPI, started before anything else
    watchdog       calls of MPI that block, ended after the timeout
    watcher        the process that does it, a script of its own
    launch         from processes that a launcher started to a `World`
    communicator   rank, size, allgather, broadcast, barrier, abort
    waiting        waits that end: after a timeout a roll is called, and those who do not answer are named
    memory         arrays that the ranks of one machine share, and how they wait for each other
    exchange       rows to everyone, through that memory and between machines
    node           the ranks of one machine: weights held once, and updates that they rebuild together
    pool           the ranks as takers of tasks, for sweeps
    lifecycle      from the start to the end of all ranks, whatever happens to one of them

Found by three entry points called `mpi`, where an MPI launcher started the process: `rbd_ref.starts` (start.py) before
anything else is imported, `rbd_ref.exchanges` (launch.py) for the world, and `rbd_ref.pools` (pool.py) for sweeps. So
nothing is imported here.
Tests: tests/test_mpi.py, tests/test_hangs.py, tests/test_sweep.py, tests/ft_mpi.py.
"""
