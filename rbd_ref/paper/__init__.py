"""The paper's tables and figures as data, the runs that repeat them, and what came of them.

    tables      what a table or figure says, and the settings of its cells, from a TOML file
    results     what a run gave, one small JSON each: settings, curve, figures, sha256 of the weights
    runner      trains what has no result yet, one seed of every cell before two of any
    summary     means and intervals of cells, from the results alone

`python -m rbd_ref.paper` is the command. The files are in benchmarks/paper/ of the repository, and
`make paper-page` makes docs/paper.md of them.
Tests: tests/test_paper.py.

May import: runs, training.
"""
