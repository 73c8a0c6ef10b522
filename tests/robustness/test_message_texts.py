"""Every ``raise`` in the library: its message names a file, tensor or argument, and says more than three words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastio

ROOT = Path(fastio.__file__).parent
# Classes and functions that take the file, tensor or tool as an argument, and put it into the message themselves.
NAMING = (
    *("TransferError", "CorruptFileError", "ChecksumError", "NotReplaceableError", "FolderMissingError"),
    *("TargetIsFolderError", "NotAFolderError", "ToolUnavailableError", "DeviceInUseError", "ShardMissingError"),
    *("FileNotFoundError", "FileExistsError", "IsADirectoryError", "NotADirectoryError", "OSError"),
    *("KeyError", "StopIteration", "StateLostError", "click.UsageError", "NeedsTorchError", "FolderInUseError"),
)
# Their texts are inside of other messages, whose raiser names the file.
INNER = {
    *("backends", "nvme", "devices"),
    *("formats/pt/pickle_outline.py", "formats/pt/pickled_tensors.py", "formats/safetensors/header.py"),
    *("formats/pt/zip_members.py", "dicts/files.py", "dicts/priors.py", "dicts/json_form.py", "dicts/storage.py"),
    *("inspect/dictionaries.py", "files/npy_header.py", "checkpoint/restoring/outline.py"),
    *("checkpoint/folder/manifest.py", "engine/executor.py", "distributed/metadata_unpickler.py"),
    *(
        "offload/codecs/csr.py",
        "formats/pt/unpickler.py",
        "runtime/interrupt_safe_thread.py",
        "memory/staging_buffers.py",
        "testing",
    ),
}
# About the one object that the caller holds, about an argument that is named, or never seen by callers.
WITHOUT_A_NAME = {
    "folder='': expected the path of a folder",
    "the save was interrupted before all of the state was copied",
    "no tool can do this: the list of candidates is empty",
    "there is no tool to choose from",
    "there is no process group to share dictionaries in: call init_process_group first",
    "nothing is planned yet: train a step first",
    "this Hybrid is closed: make another, or call the optimizer's own step",
    "another thread is in a forward pass of this model, or in its update, and both use its parameters: let threads",
    "this optimizer has a Hybrid already: close() that one before making another",
    "the Hybrid of this optimizer was garbage-collected: keep a reference to it, or close() it before",
    "device='meta': tensors there have no memory to load into; name the device to create them on",
    "group=: this rank is not in that process group; call it on the ranks of the group only",
    "tensors() got read_ahead and memory_budget, which are the same: give read_ahead",
    "the list of files is empty; name at least one",
    "this Offload is closed",
    "this Offload was made before a fork",
    "this Offload is in use already in this thread",
    "this Offload has not planned which operators to recompute",
    "this store is closed",
    "force is for devices that are opened here",
    "an offloaded tensor is needed while a CUDA graph is captured",
    "when_busy='queue': incremental=True compares with one copy",
    "writer='process': ",
    "on_signal must be called in the main thread",
    "fqn_to_index_mapping and max_shard_size= both divide the tensors into files",
    "enable_consolidation=True needs save_distributed=True",
    "File is closed",  # safetensors' own words
}


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Each ``raise X(...)`` of the library, with its place."""
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.split("/")[0] in INNER or name in INNER:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                yield f"{name}:{node.lineno}", node.exc


def problem(call: ast.Call) -> str:
    """What is wrong with the message of a ``raise``; empty if nothing is."""
    kind = ast.unparse(call.func)
    if kind.rpartition(".")[2] in NAMING or not kind.rpartition(".")[2].endswith(("Error", "Warning", "Exception")):
        return ""  # a function makes the error: its text is where that is called
    parts = [part for argument in call.args for part in ast.walk(argument)]
    text = "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    if any(text.startswith(known) for known in WITHOUT_A_NAME):
        return ""
    values = [part for part in parts if isinstance(part, ast.FormattedValue)]
    if not parts or (not values and not any(isinstance(part, ast.Name | ast.Attribute) for part in parts)):
        return f"names nothing: {text!r}"
    told = sum(isinstance(part, ast.FormattedValue) for part in parts)
    if values and len(text.split()) < 3 and told < 2:
        return f"says too little: {text!r}"
    return ""


def test_every_message_names_something_and_says_what_is_wrong() -> None:
    found = [f"{where}: {wrong}" for where, call in raised() if (wrong := problem(call))]
    assert not found, "\n".join(found)


def test_the_walk_sees_the_library() -> None:
    assert sum(1 for _ in raised()) > 250


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('raise ValueError("a wrong value was given here")', "names nothing"),
        ("raise ValueError()", "names nothing"),
        ('raise FormatError(f"{path}: bad")', "says too little"),
        ('raise FormatError(f"{path}: expected a dict, got {kind}; save it as .pt")', ""),
        ('raise TransferError(1, "read", path)', ""),
    ],
)
def test_the_rule_can_fail(code: str, wrong: str) -> None:
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.Raise)
    assert isinstance(node.exc, ast.Call)
    found = problem(node.exc)
    assert found.startswith(wrong) if wrong else not found


def test_the_exceptions_are_still_there() -> None:
    texts = "".join(
        "".join(part.value for part in ast.walk(call) if isinstance(part, ast.Constant) and isinstance(part.value, str))
        for _, call in raised()
    )
    assert [known for known in WITHOUT_A_NAME if known not in texts] == []
