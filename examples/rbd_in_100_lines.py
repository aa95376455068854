"""Random bases descent in one sitting: less than 100 lines of code, and no library but NumPy.

W workers train one network of D weights. If they exchanged gradients, each would send D numbers at every step. Instead,
each draws d << D random directions and sends only the d coefficients of its gradient along them. Directions are never
sent or kept: they are pure functions of (seed, step, worker), so everyone regenerates everyone's. And because they are
specified to the bit (docs/specification.md), all replicas hold the same weights without ever exchanging one.

The method: Gressmann, Eaton-Rosen, Luschi, "Improving Neural Network Training in Low Dimensional Random Bases", 2020,
Algorithm 1. The package rbd_ref, given the same problem, arrives at the same sha256: tests/test_examples.py checks it.
"""

import gzip
import hashlib
from pathlib import Path

import numpy as np

# 1. WORDS. This generator has no state: a key and a counter go in, two random 32-bit words come out. So any machine can
# have any word at any time. It needs only add, rotate and xor, which every device computes alike.


@np.errstate(over="ignore")  # words are added modulo 2^32
def threefry(key: np.ndarray, counter: np.ndarray | tuple) -> np.ndarray:
    """Threefry2x32 with 20 rounds (Salmon et al. 2011), for many counters at once; the last axis is the two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x0, x1 = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << r | x1 >> (32 - r)) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack([x0, x1], axis=-1)


def make_key(seed: int, *numbers: int) -> np.ndarray:
    """Fold numbers into a seed one by one. If they were added, worker 2 at step 5 would draw as worker 1 at step 6."""
    key, *counters = [np.array([n >> 32, n & 0xFFFFFFFF], dtype=np.uint32) for n in (seed, *numbers)]
    for counter in counters:
        key = threefry(key, counter)
    return key


BASES, INITIALISATION, ORDER = 0, 1, 2  # folded in first, so that different uses of one seed never share words

# 2. DIRECTIONS. Each bit makes one entry, +1 or -1. This is the family `rademacher`, the shortest to write; the
# package has others (normal, uniform, sparse, srht). Here a basis is a matrix for as long as it is used; for millions
# of weights the package makes entries as it needs them and never holds a basis whole.


def directions(seed: int, step: int, worker: int, d: int, D: int) -> np.ndarray:
    """The d directions of a worker at a step, phi_i in row i. Counter (i, p) makes its entries 64 p .. 64 p + 63."""
    key = make_key(seed, BASES, step, worker, 0)  # 0 is the compartment: this network is a single one
    i, p = np.arange(d, dtype=np.uint32)[:, None], np.arange(-(-D // 64), dtype=np.uint32)
    octets = threefry(key, (i, p)).astype("<u4").reshape(d, -1).view(np.uint8)
    return np.float32(1) - 2 * np.unpackbits(octets, axis=1, count=D, bitorder="little")  # a set bit is -1


# 3. PROJECT AND RECONSTRUCT. The last bits of a float sum depend on its order. All replicas reconstruct and must agree,
# so there the order is law. Only the sender projects: `phi @ g` would train as well, but not to the package's sha256.


def project(phi: np.ndarray, g: np.ndarray) -> np.ndarray:
    """a_i = <phi_i, g> / |phi_i|^2: the coordinate along phi_i / |phi_i|, over |phi_i| so that no norm need be sent."""
    d, D = phi.shape
    tiles = np.zeros((d, -(-D // 4096), 64, 64), dtype=np.float32)  # 4096 products a tile, 64 rows of 64 lanes
    tiles.reshape(d, -1)[:, :D] = phi * g
    lanes = sum(tiles[:, :, row] for row in range(64))  # vector units add lanes side by side
    while lanes.shape[-1] > 1:
        left, right = np.split(lanes, 2, axis=-1)
        lanes = left + right
    inner = sum(lanes[:, tile, 0].astype(np.float64) for tile in range(lanes.shape[1]))
    a = (inner / D).astype(np.float32)  # |phi_i|^2 is D, since every entry is +1 or -1
    return np.where(np.abs(a) < 2.0**-64, np.float32(0), a)  # keeps `reconstruct` off subnormals, where devices differ


def reconstruct(phi: np.ndarray, a: np.ndarray) -> np.ndarray:
    """u = sum_i a_i phi_i from +0 on, i ascending, each sum rounded. Other families round each product too: no FMA."""
    u = np.zeros(phi.shape[1], dtype=np.float32)
    for a_i, phi_i in zip(a, phi, strict=True):
        u = u + a_i * phi_i
    return u


# 4. A PROBLEM is anything with `D`, `initial` and `loss_and_gradient`. Machines may disagree on the last bits of their
# gradients and replicas still agree. Float64, rounded once, only makes it likely that you see the hash that we see.


class Digits:
    """A 64-64-10 network (ReLU, softmax, cross entropy) on 8 x 8 images; theta is W1, b1, W2, b2 in one vector."""

    D = 64 * 64 + 64 + 64 * 10 + 10

    def __init__(self) -> None:
        folder = Path(__file__).resolve().parents[1] / "rbd_ref" / "data"
        files = (folder / f"digits-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1"))
        images, labels = (gzip.decompress(file.read_bytes()) for file in files)
        self.images = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(-1, 64) / 16
        self.labels = np.frombuffer(labels, dtype=np.uint8, offset=8)

    def initial(self, seed: int) -> np.ndarray:
        """Uniform within 1 / sqrt(64): both layers have 64 inputs."""
        words = threefry(make_key(seed, INITIALISATION), (np.uint32(0), np.arange(self.D // 2, dtype=np.uint32)))
        return ((words.ravel() >> 8) / 2**23 - 1).astype(np.float32) / 8

    def forward(self, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logits; and the hidden layer and W2, which the gradient needs."""
        W1, b1, W2, b2 = np.split(theta, [4096, 4160, 4800])
        hidden = np.maximum(x @ W1.reshape(64, 64) + b1, 0)
        return hidden @ W2.reshape(64, 10) + b2, hidden, W2.reshape(64, 10)

    def loss_and_gradient(self, theta: np.ndarray, step: int, worker: int) -> tuple[float, np.ndarray]:
        """On a mini-batch of the worker's own: 64 of the first 1,500 images."""
        words = threefry(make_key(0, ORDER, step, worker), (np.uint32(0), np.arange(32, dtype=np.uint32)))
        batch = words.ravel() % 1500
        x, y = self.images[batch], np.eye(10)[self.labels[batch]]
        logits, hidden, W2 = self.forward(theta, x)
        z = logits - logits.max(axis=1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        dz = (np.exp(log_p) - y) / 64  # the derivative with respect to the logits
        dh = dz @ W2.T * (hidden > 0)  # and, back through W2 and the ReLU, to what enters the hidden layer
        gradient = np.concatenate([(x.T @ dh).ravel(), dh.sum(axis=0), (hidden.T @ dz).ravel(), dz.sum(axis=0)])
        return float(-np.sum(y * log_p) / 64), gradient.astype(np.float32)

    def accuracy(self, theta: np.ndarray) -> float:
        """On the last 297 images, which no worker trains on."""
        return float(np.mean(self.forward(theta, self.images[1500:])[0].argmax(axis=1) == self.labels[1500:]))


# 5. WORKERS. Each of the two inner loops is what W machines do at the same time. The list that the first fills and the
# second reads is the network between them: W d numbers a step, and nothing else is ever exchanged.


def train(problem: Digits, workers: int, steps: int, d: int, eta: float, seed: int) -> np.ndarray:
    """theta <- theta - eta (u_0 + u_1 + ...) on every replica, with u_w rebuilt from what worker w sent."""
    replicas = [problem.initial(seed) for _ in range(workers)]
    for step in range(steps):
        all_coefficients = []
        for worker, theta in enumerate(replicas):
            loss, g = problem.loss_and_gradient(theta, step, worker)
            all_coefficients.append(project(directions(seed, step, worker, d, problem.D), g))
        for replica, theta in enumerate(replicas):
            bases = (directions(seed, step, worker, d, problem.D) for worker in range(workers))
            u = sum(reconstruct(phi, a) for phi, a in zip(bases, all_coefficients, strict=True))
            replicas[replica] = theta - np.float32(eta) * u
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss:.3f} on the last worker's batch")
    hashes = [hashlib.sha256(theta.astype("<f4").tobytes()).hexdigest() for theta in replicas]
    assert len(set(hashes)) == 1, f"replicas differ: {hashes}"
    print(f"all {workers} replicas: sha256 {hashes[0]}")
    return replicas[0]


SETTINGS = {"workers": 4, "steps": 300, "d": 32, "eta": 8.0, "seed": 0}

if __name__ == "__main__":
    digits = Digits()
    print(f"{SETTINGS['workers']} workers, each sends {SETTINGS['d']} numbers a step instead of {digits.D:,}")
    theta = train(digits, **SETTINGS)
    print(f"{digits.accuracy(theta):.1%} of the held-out images are classified correctly")
