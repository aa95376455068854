"""The definition of a random basis in plain NumPy: from words to directions to updates, written to be read.

    prng          seeds to keys, keys to words (Threefry2x32-20)
    families      words to the entries of a direction
    hadamard      the structured family `srht`
    compartments  how D parameters are cut into ranges with directions of their own
    plan_names    the same by name, as in `tensor`, `even:4`, `each:250`
    operations    directions, project, reconstruct
    random        streams of portable random numbers, which are directions too

Golden vectors come from here and from nothing else; kernels/ and every backend are held to it, bit by bit.
docs/specification.md is the same in prose.
May import: nothing.
"""
