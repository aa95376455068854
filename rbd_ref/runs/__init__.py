"""What a run is given and what it leaves: configuration, presets, the journal, the folder.

Tests: tests/test_runs.py, tests/test_config.py, tests/test_journal.py, tests/test_presets.py.
"""
