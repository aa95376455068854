"""The examples with torch run: a few steps of each, in processes of their own."""

from __future__ import annotations

import re

import pytest

from tools import ROOT, run_python

pytestmark = pytest.mark.compiled
EXAMPLES = ROOT / "examples"


def printed(*command: str) -> str:
    """What an example that must succeed has printed."""
    result = run_python(*command, OMP_NUM_THREADS="1")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_model_of_ones_own() -> None:
    """As large as it is unless it is told otherwise: from one to ten million parameters."""
    lines = printed(str(EXAMPLES / "torch_own_model.py"), "--steps", "2").splitlines()
    assert [line.split()[0] for line in lines] == ["AdamW", "SGD", "RBD"]
    for line in lines:
        assert 10**6 <= int(line.split()[1].replace(",", "")) <= 10**7
        first, last = map(float, re.findall(r"loss ([\d.]+) to ([\d.]+)", line)[0])
        assert 0 < last < 2 * first < 12


def test_adoption_takes_two_lines() -> None:
    """An import and a constructor, marked as such."""
    text = (EXAMPLES / "torch_own_model.py").read_text().split('"""', 2)[2]
    marked = [line for line in text.splitlines() if "RBD" in line and not line.strip().startswith(("#", "for", "sent"))]
    assert len(marked) == text.count("# <--") == 2


def test_two_ranks() -> None:
    """All methods leave the same weights on both ranks, and RBD sends a fraction of what plain DDP sends."""
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone")
    lines = printed(*launch, str(EXAMPLES / "torch_ddp.py"), "--steps", "30").splitlines()
    found = {line[:10].strip(): int(line[10:].split()[0].replace(",", "")) for line in lines if "bytes" in line}
    assert list(found) == ["plain DDP", "PowerSGD", "rbd_hook", "RBD"]
    assert all("the same weights on all ranks" in line for line in lines if "bytes" in line)
    assert found["RBD"] * 50 < found["plain DDP"]
    assert found["rbd_hook"] * 10 < found["plain DDP"]


def test_hugging_face() -> None:
    assert "bytes: the same bits" in printed(str(EXAMPLES / "huggingface_trainer.py"), "--steps", "5")
