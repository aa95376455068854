"""What a run is told, and what it leaves: configurations, presets, and the folder with its journal.

    config        every setting with its default and its help, once
    grid          the values of settings that vary, and their combinations
    presets       the cells of the paper's tables by name
    folder        the files of a run's folder, and the one reader of them
    paths         settings that name code, which no file may do
    lock          one process writes to a folder at a time
    journal       what all workers sent at each step, appended and checksummed
    local_states  what each worker keeps to itself, in files beside a checkpoint
    memory        what a run says when memory runs out
    files         what a run says when a file or folder fails it

May import: backend, data, methods, models, spec.
"""
