"""fastio does not query GPUs without need in a torch built for CUDA: a query breaks CUDA in forked children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUERIES = """
import sys
import traceback
import torch

questions = []

def query(*_):
    questions.append("".join(traceback.format_stack()))
    return False

torch.backends.cuda.is_built = lambda: True
torch.cuda.is_available = torch.accelerator.is_available = torch.accelerator.current_accelerator = query
torch.cuda.device_count = lambda: 0  # harmless: it uses the driver's management library
import fastio

for suffix in ("pt", "npy", "safetensors"):
    path = f"{sys.argv[1]}/a.{suffix}"
    fastio.save(torch.arange(5) if suffix == "npy" else {"a": torch.arange(5)}, path)
    fastio.load(path)
    fastio.load(path, "cpu")
    fastio.explain(path)
sys.exit("\\n".join(questions) or 0)
"""


def test_import_save_and_load_of_host_memory_do_not_query_gpus(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", QUERIES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=600
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.cuda
def test_a_forked_child_may_use_cuda_after_import(tmp_path: Path) -> None:
    code = (
        "import os, torch, fastio\n"
        f"fastio.save(torch.arange(5), {str(tmp_path / 'a.pt')!r}); fastio.load({str(tmp_path / 'a.pt')!r})\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    assert torch.ones(1, device='cuda').item() == 1\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
