"""Whom a user would pick instead of fastio, fastio itself, and its tools one by one: all by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastio.bench import rivals

if TYPE_CHECKING:
    import fastio

BOTH = frozenset({"tensor", "dict"})
TENSOR = frozenset({"tensor"})
TOOL = "tool:"

Saver = Callable[[Any, str, bool], str]
Loader = Callable[[str], tuple[Any, str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One tool, as one line of the tables.

    ``save(object, path, durable)`` and ``load(path)`` (with the object, the latter) return the way the bytes took, if
    the tool tells. ``variant_of`` names the peer of which this is a variant, ``files_of`` the one whose files it loads
    (else those of the former, else its own). ``mapped`` says that loading only maps the
    file: its timed call then also touches every page. ``environment`` is set in the fresh process that loads.
    """

    name: str
    package: str
    module: str
    save: Saver | None
    load: Loader | None
    kinds: frozenset[str] = BOTH
    variant_of: str = ""
    files_of: str = ""
    mapped: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name as tables show it."""
        return self.name.removeprefix(TOOL)

    @property
    def owner(self) -> str:
        """The peer that writes the files which this one loads."""
        return self.files_of or self.variant_of or self.name

    def takes_part(self, operation: str) -> bool:
        """False for a variant that saves (or loads) just as the peer of which it is one."""
        return not self.variant_of or (self.save if operation == "save" else self.load) is not None

    def unable(self, operation: str, kind: str) -> str:
        """Why this peer cannot save (or load) an object of that kind here; empty if it can."""
        if (self.save if operation == "save" else self.load) is None:
            return f"does not {operation}"
        if kind not in self.kinds:
            return "holds one array a file, no state dict"
        try:
            import_module(self.module)
        except ImportError as error:
            return f"not installed ({error}); pip install {self.package}"
        return ""

    def saver(self) -> Saver:
        """What saves; LookupError if this peer only loads."""
        if self.save is None:
            raise LookupError(f"{self.name} saves nothing of its own")
        return self.save

    def loader(self) -> Loader:
        """What loads; LookupError if this peer only saves."""
        if self.load is None:
            raise LookupError(f"{self.name} loads nothing of its own")
        return self.load


def every() -> list[Peer]:
    """All peers, torch (what ratios are shown against) first."""
    return [
        Peer("torch", "torch", "torch", rivals.torch_save, rivals.torch_load),
        Peer("torch, no CRC", "torch", "torch", rivals.torch_save_without_crc, None, variant_of="torch"),
        Peer(
            "torch, huge pages",
            "torch",
            "torch",
            None,
            rivals.torch_load,
            variant_of="torch",
            environment={"THP_MEM_ALLOC_ENABLE": "1"},
        ),
        Peer(
            "safetensors",
            "safetensors",
            "safetensors.torch",
            rivals.safetensors_save,
            rivals.safetensors_load,
            mapped=True,
        ),
        Peer("numpy", "numpy", "numpy", rivals.numpy_save, rivals.numpy_load, kinds=TENSOR),
        Peer("DCP", "torch", "torch.distributed.checkpoint", rivals.dcp_save, rivals.dcp_load),
        Peer("DALI", "nvidia-dali-cuda120", "nvidia.dali", None, rivals.dali_load, kinds=TENSOR, files_of="numpy"),
        Peer("fastio", "fastio", "fastio", _fastio_save, _fastio_load),
        Peer("fastio, unverified", "fastio", "fastio", None, _fastio_load_unverified, variant_of="fastio"),
    ]


def find(name: str, device: str = "cpu") -> Peer:
    """The peer of that name; ``tool:<name>`` is one of fastio's own tools, on that device."""
    if name.startswith(TOOL):
        return _tool(name, device)
    return {peer.name: peer for peer in every()}[name]


def _tool(name: str, device: str) -> Peer:
    """One of fastio's tools, asked for by name, with the format it is at home in: npy for numpy and what lacks pt."""
    import fastio

    policy = name.removeprefix(TOOL)
    status = next(status for status in fastio.tools() if status.name == policy)
    layout = "npy" if policy == "numpy" or "pt" not in status.formats else "pt"

    def save(thing: Any, path: str, durable: bool) -> str:
        return way(fastio.save(thing, path, policy=policy, durable=durable, format=layout))

    def load(path: str) -> tuple[Any, str]:
        with fastio.record() as transfers:
            thing = fastio.load(path, device, policy=policy)
        return thing, way(transfers[-1])

    return Peer(
        name,
        "fastio",
        "fastio",
        save if "save" in status.operations else None,
        load if "load" in status.operations else None,
        kinds=TENSOR if layout == "npy" else BOTH,
        files_of="" if "save" in status.operations else f"{TOOL}numpy",
    )


def _fastio_save(thing: Any, path: str, durable: bool) -> str:
    import fastio

    result = fastio.save(thing, path, durable=durable)
    return way(result)


def _fastio_load(path: str, verify: bool = True) -> tuple[Any, str]:
    import fastio

    with fastio.record() as transfers:
        thing = fastio.load(path, verify=verify)
    return thing, way(transfers[-1])


def _fastio_load_unverified(path: str) -> tuple[Any, str]:
    return _fastio_load(path, verify=False)


def way(transfer: fastio.Transfer) -> str:
    """The tool that moved the bytes, and the route it took."""
    return f"{transfer.tool}, {transfer.route}"
