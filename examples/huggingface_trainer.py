"""Hugging Face's Trainer with random bases descent: nothing but `optimizer_cls_and_kwargs`.

    pip install 'rbd-ref[torch,huggingface]'
    python examples/huggingface_trainer.py

A tiny GPT-2 with random weights, made here, learns a text that counts; nothing is downloaded. The journal that the
optimizer writes is all that the trained model takes beside the untrained one: it is rebuilt from it at the end.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rbd_torch import RBD, replay

LENGTH = 32
VOCABULARY = 64


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that go up by 1, 2 or 3 from anywhere."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (index + (1 + index % 3) * torch.arange(LENGTH)) % VOCABULARY
        return {"input_ids": numbers, "labels": numbers}


def make_model() -> GPT2LMHeadModel:
    """A GPT-2 of two layers."""
    torch.manual_seed(0)
    size = {"n_embd": 64, "n_layer": 2, "n_head": 4}
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0, **size)
    return GPT2LMHeadModel(config)


def train(model: GPT2LMHeadModel, D: int, steps: int, journal: Path) -> Trainer:
    """With the Trainer as it is, which makes groups with and without weight decay: a plan for each, one basis."""
    how = {"lr": 0.1 * D / 2000, "dims": 1000, "memory": 0.9, "journal": journal}
    arguments = TrainingArguments(
        output_dir=str(journal.parent),
        max_steps=steps,
        per_device_train_batch_size=32,
        logging_steps=max(1, steps // 5),
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Counting(), optimizer_cls_and_kwargs=(RBD, how))
    trainer.train()
    return trainer


def rebuild(base: GPT2LMHeadModel, model: GPT2LMHeadModel, trainer: Trainer, journal: Path) -> int:
    """Move the weights of `base` to those of `model`, which are in the optimizer's order in the journal."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = trainer.optimizer.param_groups
    return replay([base.get_parameter(names[id(p)]) for group in groups for p in group["params"]], journal)


def main() -> None:
    """Train, and rebuild the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="(default: %(default)s)")
    options = parser.parse_args()
    model = make_model()
    base = copy.deepcopy(model)
    D = sum(parameter.numel() for parameter in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "run.rbd"
        trainer = train(model, D, options.steps, journal)
        steps = rebuild(base, model, trainer, journal)
        same = all(map(torch.equal, base.parameters(), model.parameters()))
        size = journal.stat().st_size
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"{D:,} parameters, loss {losses[0]:.3f} to {losses[-1]:.3f} in {steps} steps")
    print(f"rebuilt from the base and a journal of {size:,} bytes: {'the same bits' if same else 'OTHER BITS'}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
