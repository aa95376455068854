"""Your own problem in NumPy: a loss and a gradient over a flat vector are all that random bases descent needs.

    python examples/numpy_own_problem.py

First least squares, by `rbd_ref.minimize`: one function. Then a small network whose gradient autograd takes, by
`rbd_ref.fit`: a class with `D`, `initial` and `loss_and_gradient`, four workers with mini-batches of their own, and a
journal from which the weights of any step are rebuilt.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import autograd
import autograd.numpy as anp
import numpy as np

import rbd_ref as rbd


def least_squares(rows: int = 400, D: int = 300) -> float:
    """Solve A theta = b along 60 of 300 directions a step; returns the distance from the solution, 1 at the start."""
    A = rbd.random.normal((rows, D), seed=1) / np.float32(np.sqrt(rows))
    solution = rbd.random.uniform(D, seed=1, stream=1)
    b = A @ solution

    def loss_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
        error = A @ theta - b
        return float(error @ error) / 2, A.T @ error

    result = rbd.minimize(loss_and_gradient, np.zeros(D, dtype=np.float32), d=60, lr=1.0, steps=2_000)
    return float(np.linalg.norm(result.theta - solution) / np.linalg.norm(solution))


SHAPES = ((2, 32), (32,), (32, 32), (32,), (32, 1), (1,))  # of a network's weights and biases
SIZES = [int(np.prod(shape)) for shape in SHAPES]


class Spirals:
    """Two spirals told apart by a network of 2-32-32-1, its weights in one flat vector; autograd differentiates it."""

    D = sum(SIZES)

    def __init__(self, points: int = 512, batch: int = 64) -> None:
        turn = np.sqrt(rbd.random.uniform(points, seed=2)) * 1.5 * np.pi
        side = rbd.random.signs(points, seed=2)
        self.x = (side * turn * np.stack([np.cos(turn), np.sin(turn)]) / 5).T.astype(np.float32)
        self.y = side
        self.batch = batch
        self.gradient = autograd.value_and_grad(self.loss)

    def initial(self, seed: int) -> np.ndarray:
        """Normals, scaled by the number of inputs; biases too, which does no harm."""
        parts = [rbd.random.normal(size, seed, stream=n) for n, size in enumerate(SIZES)]
        scales = [1 / np.sqrt(shape[0]) for shape in SHAPES]
        return np.concatenate([part * scale for part, scale in zip(parts, scales, strict=True)]).astype(np.float32)

    def tensors(self, theta: np.ndarray) -> list[np.ndarray]:
        """The flat vector as weights and biases."""
        parts = anp.split(theta, np.cumsum(SIZES)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]

    def outputs(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """One number for each point: its sign tells the spiral."""
        w1, b1, w2, b2, w3, b3 = self.tensors(theta)
        hidden = anp.tanh(anp.dot(anp.tanh(anp.dot(x, w1) + b1), w2) + b2)
        return (anp.dot(hidden, w3) + b3)[:, 0]

    def loss(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
        """The mean logistic loss."""
        return anp.mean(anp.log1p(anp.exp(-y * self.outputs(theta, x))))

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        """Of the worker's mini-batch: which points it has is a function of step and worker."""
        chosen = (rbd.random.uniform(self.batch, seed=step, stream=worker) * len(self.y)).astype(int)
        loss, gradient = self.gradient(theta.astype(np.float64), self.x[chosen], self.y[chosen])
        return float(loss), gradient

    def accuracy(self, theta: np.ndarray) -> float:
        """The share of all points that are told right."""
        return float(np.mean(np.sign(self.outputs(theta, self.x)) == self.y))


def spirals(steps: int = 1_500) -> tuple[float, bool]:
    """Train along 100 of 1,185 directions; returns the accuracy, and whether the journal rebuilds the weights."""
    problem = Spirals()
    settings = rbd.Config(dims=100, family="srht", steps=steps, lr=8.0, schedule="linear", workers=4, combine="mean")
    with tempfile.TemporaryDirectory() as folder:
        result = rbd.fit(settings, problem, out=Path(folder) / "run")
        again = rbd.open_run(Path(folder) / "run", problem).theta(steps)
    return problem.accuracy(result.theta), bool(np.array_equal(again, result.theta))


def main() -> None:
    """Both problems."""
    print(f"least squares: {least_squares():.1e} of the distance is left")
    accuracy, rebuilt = spirals()
    print(f"spirals: D = {Spirals.D}, {accuracy:.1%} right, rebuilt from the journal to the bit: {rebuilt}")


if __name__ == "__main__":
    main()
