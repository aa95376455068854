"""Campaigns that try to break what docs/reliability.md promises: run as `python tests/torture`, see `--help`.

    command          flags, minutes shared among campaigns, the table, the exit status
    pool             processes that play cases, one at a time each; who hangs or dies is replaced
    campaign         what a campaign is, and what a case that failed raises
    commands         train, replay and report: in this process, in a fork of it, or in a new Python
    runs             the small runs that are tortured, and what they come to undisturbed
    journal_format   all that is known here of the journal's bytes
    kills, mpi_kills, fuzz (with damage), data_files, faults, full_disk, two_at_once: the campaigns

A case is a function of the seed, the campaign's name and its own number, so that each can be repeated alone. Where it
waits for a moment by the clock, as some kills do, the moment is repeated and what it hits may differ.
"""
