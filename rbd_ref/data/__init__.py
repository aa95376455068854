"""Images and labels: from files by name to the floats that a network takes at a given step.

    datasets        data sets by name, checked by fingerprint: `load`
    batches         training, validation and test set; which images each worker takes at each step
    augmentation    bytes to floats, and the random changes of images, to the bit
    formats         readers of the standard files, bounded by what these can hold
    pickles         what a python batch of CIFAR-10 may contain
    downloads       the standard files from their servers
    errors          `DataError`

The images of `digits` lie here as two idx files; digits.txt says where they are from and under which licence.
May import: spec, kernels.
"""
