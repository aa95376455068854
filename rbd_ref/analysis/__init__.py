"""Analyses of directions and of runs: each a function, a subcommand of `python -m rbd_ref.analysis`, and a picture.

    cosines       |cosine| of pairs of directions against D, and what theory expects of each family
    correlation   cosine of update and gradient along a run, and what the gradient itself lets one expect
    landscape     loss along directions of each family, at steps of a run
    dimension     intrinsic dimension: the least d that reaches a share of SGD's accuracy
    spectrum      how much of the gradient's energy each tensor of a network has along a run
    restored      what the analyses of a run share: weights and gradients at chosen steps, from its journal
    pictures      the figures; the only file that needs matplotlib

May import: basis, data, methods, models, runs, spec, training.
"""
