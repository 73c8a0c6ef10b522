"""Names the kind of a zip file that torch.load does not open, from its record names, and what opens it."""

from __future__ import annotations

from collections.abc import Collection

from fastio.errors import CorruptFileError, FastIOError, FormatError


def not_torch_save(path: str, names: Collection[str], problem: str) -> FastIOError:
    """Return the error for a zip file that torch.save cannot have written.

    FormatError for a good file of another program, with what opens it; CorruptFileError with the ``problem`` if
    records are named as torch.save names them. ``names`` are the records' names without a folder.
    """
    kind = _kind(names)
    if kind:
        return FormatError(f"{path}: expected a file of torch.save, found {kind}")
    if any(name.endswith("data.pkl") for name in names) or any(name.startswith("data/") for name in names):
        return CorruptFileError(path, None, f"{problem}: it was damaged, or cut and repaired; restore it from a copy")
    return FormatError(f"{path}: a zip file of another program: only torch's files can be loaded and verified")


def _kind(names: Collection[str]) -> str:
    if ".data/extern_modules" in names:
        return "a package; open it with torch.package.PackageImporter"
    if any(name.startswith("data/aotinductor/") for name in names):
        return "a compiled program; open it with torch._inductor.aoti_load_package"
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return "an exported program; open it with torch.export.load"
    if "constants.pkl" in names:
        return "a TorchScript program; open it with torch.jit.load"
    if any(name.endswith("model.weights.h5") for name in names):
        return "a model of Keras; open it with keras.models.load_model"
    if any(name.endswith((".pt", ".pth", ".ckpt", ".bin", ".safetensors")) for name in names):
        return "a zip archive with files of tensors in it; unpack it with unzip, and name one of them"
    if names and all(name.endswith(".npy") for name in names):
        return "numpy arrays; open it with numpy.load"
    return ""
