"""Training: from a configuration to weights, alone or on many ranks.

    problem        what is trained: an embedded network on a data set, or anything of a user's own
    experiment     everything that follows from a configuration and its problem
    third_party    a method of somebody else's, found by its path and held to the protocol
    trainer        the steps: propose -> allgather -> collect, sum_updates, apply_update -> journal
    proposals      what a rank's workers find, in as little memory as a step needs
    local_states   what a rank's workers keep to themselves between two steps
    communicator   how processes train together: protocols with MPI's words, and the single process
    logbook        what rank 0 keeps of a run; history.py is its part in memory
    resume         where a run is resumed from; beginning.py is what ranks make of it
    fit            training from Python; the command is a thin layer over it
    minimize       the same for a function, without a problem or a configuration
    guidance       what bases cost on this machine, and settings that go with SGD's rate
    grid           many runs side by side, on the processes of pools.py; search.py finds a rate, table.py sums up
    recorded       a run that was written down: history, weights at any step, verification

May import: backend, basis, data, kernels, methods, models, runs, spec.
"""
