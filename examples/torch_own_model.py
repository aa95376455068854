"""A model of your own in torch: a small transformer learns to write, by random bases descent beside AdamW and SGD.

    python examples/torch_own_model.py                  1.3 million parameters, some minutes
    python examples/torch_own_model.py --width 384 --layers 6 --steps 2000        10.7 million
    python examples/torch_own_model.py --steps 3        is it all there?

What RBD takes are the two lines marked with <--. The text is the project's own documentation, character by character.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from rbd_torch import RBD  # <-- one

ROOT = Path(__file__).parent.parent
CONTEXT = 64
BATCH = 32


class Transformer(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=width // 32, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, characters, bias=False)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.output.weight = self.characters.weight  # tied: it is one parameter to every optimizer

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, CONTEXT) of character numbers."""
        hidden = self.characters(x) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.output(self.norm(self.layers(hidden, mask=mask, is_causal=True)))


def read_text() -> Tensor:
    """The pages of the documentation as numbers of characters."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    number = {character: n for n, character in enumerate(sorted(set(text)))}
    return torch.tensor([number[character] for character in text])


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Passages, and the same one character later; those of a step are the same for every optimizer."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=generator)
    passages = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
    return passages[:, :-1], passages[:, 1:]


def make_optimizer(name: str, model: nn.Module, D: int, dims: int) -> torch.optim.Optimizer:
    """Each at a rate that suits it."""
    if name == "AdamW":
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.5)
    rate = 0.25 * D / dims  # half of SGD's rate, times D / dims
    return RBD(model.parameters(), lr=rate, dims=dims, memory=0.95)  # <-- two


def train(name: str, text: Tensor, options: argparse.Namespace) -> None:
    """From the same weights with the same passages; the rate goes to 0 along a line."""
    torch.manual_seed(0)
    model = Transformer(int(text.max()) + 1, options.width, options.layers)
    D = sum(parameter.numel() for parameter in model.parameters())
    optimizer = make_optimizer(name, model, D, options.dims)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1e-3, total_iters=options.steps)
    losses = []
    begin = time.perf_counter()
    for step in range(options.steps):
        x, y = batch(text, step)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    last = losses[-50:]
    seconds = (time.perf_counter() - begin) / options.steps
    sent = f"{optimizer.compression_stats().numel_after_compression // options.steps:,}" if name == "RBD" else f"{D:,}"
    print(
        f"{name:6} {D:,} parameters, {sent} numbers sent a step, {1e3 * seconds:.0f} ms a step, "
        f"loss {losses[0]:.3f} to {sum(last) / len(last):.3f}",
        flush=True,
    )


def main() -> None:
    """Train with each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=160, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--dims", type=int, default=4000, help="directions (default: %(default)s)")
    options = parser.parse_args()
    text = read_text()
    for name in ("AdamW", "SGD", "RBD"):
        train(name, text, options)


if __name__ == "__main__":
    main()
