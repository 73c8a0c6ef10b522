"""Plug-ins whose library is missing say what to install; the rest of fastio does not import the libraries."""

from __future__ import annotations

import subprocess
import sys

# The libraries and their dependencies are hidden from import.
PROGRAM = """
import sys
unlisted = ("deepspeed", "torch_checkpointing", "torchft", "torchtitan")  # in no extra of fastio
hidden = (
    "lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate", "safetensors", *unlisted
)

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
from fastio.runtime.installation import pip_install
import fastio, fastio.integrations

for name, library in (
    ("lightning", "lightning"),
    ("pytorch_lightning", "lightning"),
    ("transformers", "accelerate"),  # the Trainer needs accelerate too
    ("accelerate", "accelerate"),
    ("safetensors_patch", "safetensors"),
):
    for expected in (ImportError, fastio.ToolUnavailableError):
        try:
            __import__(f"fastio.integrations.{name}")
            fastio.patch_safetensors()  # its module imports the library when it is called
        except expected as error:
            assert f"No module named '{name if name.endswith('lightning') else library}" in str(error), error
            assert pip_install(library) in str(error), error
        else:
            raise AssertionError(f"{name} was imported")
for library in unlisted:
    try:
        __import__(f"fastio.integrations.{library}")
    except fastio.ToolUnavailableError as error:
        assert f"No module named '{library}" in str(error), error
        assert f"pip install {library.replace('_', '-')}" in str(error), error
    else:
        raise AssertionError(f"{library} was imported")
print("said")
"""


def run(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_importing_a_plug_in_without_its_library_says_what_to_install() -> None:
    assert run(PROGRAM) == "said"


def test_importing_fastio_imports_no_plug_ins_library() -> None:
    libraries = ("lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate", "safetensors")
    program = "import sys, fastio, fastio.checkpoint, fastio.distributed, fastio.integrations"
    assert not run(f"{program}; print(*(name for name in {libraries} if name in sys.modules))")
