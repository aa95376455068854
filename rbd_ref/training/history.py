"""What a run has to show: losses and figures, as plain arrays.

Tests: tests/test_fit.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rbd_ref._types import Float64Array, Indices


@dataclass
class History:
    """What a run has to show, as plain arrays.

    loss          of each step, the mean over workers
    evaluated_at  the number of steps before each evaluation
    metrics       by name (`validation_accuracy`, ...), a figure for each evaluation

    >>> history = History([2.3, 2.1, 1.9], {3: {"validation_accuracy": 0.4}})
    >>> history.loss, history.evaluated_at, history.metrics["validation_accuracy"]
    (array([2.3, 2.1, 1.9]), array([3]), array([0.4]))
    """

    losses: list[float] = field(default_factory=list)
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def loss(self) -> Float64Array:
        """The loss of each step."""
        return np.array(self.losses, dtype=np.float64)

    @property
    def evaluated_at(self) -> Indices:
        """The number of steps before each evaluation."""
        return np.array(sorted(self.evaluations), dtype=np.int64)

    @property
    def metrics(self) -> dict[str, Float64Array]:
        """The figures of all evaluations by name."""
        rows = [self.evaluations[int(t)] for t in self.evaluated_at]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}

    def table(self) -> dict[str, Float64Array | Indices]:
        """Columns of equal length, a row for each step: `step`, `loss`, and each metric, not a number between
        evaluations. `pandas.DataFrame(history.table())` takes it.

        >>> table = History([2.3, 2.1], {2: {"validation_accuracy": 0.4}}).table()
        >>> {name: column.tolist() for name, column in table.items()}
        {'step': [1, 2], 'loss': [2.3, 2.1], 'validation_accuracy': [nan, 0.4]}
        """
        steps = np.union1d(np.arange(1, len(self.losses) + 1), self.evaluated_at).astype(np.int64)
        columns: dict[str, Float64Array | Indices] = {"step": steps}
        for name, known, values in (
            ("loss", np.arange(1, len(self.losses) + 1), self.loss),
            *((name, self.evaluated_at, values) for name, values in self.metrics.items()),
        ):
            columns[name] = np.full(steps.size, math.nan)
            columns[name][np.searchsorted(steps, known)] = values
        return columns
