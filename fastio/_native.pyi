from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, TypeVar

_Made = TypeVar("_Made")
_Self = TypeVar("_Self")

class Control:
    """State shared by the caller and a running transfer: bytes done so far, cancellation.

    ``still``: the source memory does not change during the transfer.
    """

    still: bool

    def __init__(self) -> None: ...
    @property
    def done(self) -> int: ...
    @property
    def cancelled(self) -> bool: ...
    def advance(self, nbytes: int) -> None: ...
    def cancel(self) -> None: ...

class Releases:
    """Gets what nothing holds any more. Runs no Python code in a destructor, where a signal's exception is lost.

    ``keep``, a function written in C, gets it at once. ``answer`` is called soon after in the main thread, once for all
    that was released until then. It may raise into the code that the main thread then runs.
    """
    def __init__(self, keep: Callable[[Any], object], answer: Callable[[], object]) -> None: ...

class Hold:
    """Counts itself in ``saved.holds`` while it lives, and gives ``saved`` to ``releases`` when it was the last one."""
    def __new__(
        cls: type[_Self], releases: Releases, saved: Any, owner: Any = None, view: Any = None, maker: Any = None, /
    ) -> _Self: ...
    saved: Any
    owner: Any
    view: Any
    maker: Any

class WeakStorage:
    """A weak reference to a torch storage, as ``torch.UntypedStorage._new_with_weak_ptr`` takes it: ``cdata``.

    Its destructor runs no Python code, where a signal's exception would be lost.
    """
    def __init__(self, storage: Any) -> None: ...
    @property
    def cdata(self) -> int: ...

class PushedHooks:
    """Pushes and pops torch's saved-tensor hooks and keeps a record of them, without an interrupt in between.

    ``top(True)`` returns the hooks on top, or None, as torch's function does. ``top`` is None if torch lacks it.
    """
    def __init__(
        self, push: Callable[[Any, Any], object], pop: Callable[[], object], top: Callable[[bool], Any] | None
    ) -> None: ...
    def push(self, pack: Any, unpack: Any) -> None: ...
    def pop(self) -> None: ...
    def pop_all(self) -> None:
        """Pop all hooks that this object pushed in this thread. Other hooks stay, above and below."""

class Latch:
    """A one-shot event: once opened, it stays open. After an interrupted wait, wait() may be called again.

    As a context, it is opened, and marked as broken, by an exception such as KeyboardInterrupt. No signal can interrupt
    that.
    """
    def __init__(self) -> None: ...
    def open(self) -> None:
        """Open it and wake all waiting threads. A second call does nothing."""
    def wait(self, seconds: float = ...) -> bool:
        """Wait until it is open, or so many seconds. Returns whether it is open. Interruptible."""
    @property
    def is_open(self) -> bool: ...
    @property
    def is_broken(self) -> bool: ...
    @property
    def opened(self) -> float | None:
        """The time.perf_counter() at which it was opened; None if it is closed."""
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class ThreadTask:
    """A function for a thread to run once. ``over`` opens when it has run, or the task is destroyed without that."""
    def __init__(self, work: Callable[[], object], over: Latch) -> None: ...
    def __call__(self) -> None: ...

class JoinOnExit:
    """A context that is not left before the tasks made in it are over, whatever signals arrive.

    ``begin(self)`` is called on entry and returns the context's value. On exit, ``control`` is cancelled if a task is
    not over yet. Exceptions of signal handlers are raised after that.
    """
    def __init__(self, control: Control, begin: Callable[[JoinOnExit], object]) -> None: ...
    def task(self, work: Callable[[], object], over: Latch) -> ThreadTask: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class Descriptor:
    """A file or folder, opened as by os.open, by ``open`` or as a context. OSError if that fails.

    With os.open, an exception such as KeyboardInterrupt right after the call leaks the descriptor. This one is closed
    with its object, and no signal handler runs while it is opened, entered, left or closed.
    """
    def __init__(self, path: str, flags: int, mode: int = 0o666) -> None: ...
    def open(self) -> int:
        """Open it, if it is not open. Returns the descriptor."""
    def fileno(self) -> int:
        """Return the descriptor. ValueError if it is not open."""
    def close(self) -> None:
        """Close it, if it is open."""
    def close_later(self) -> None:
        """Close it on another thread, if it is open: closing the last descriptor of a deleted file takes long."""
    def detach(self) -> int:
        """Return the descriptor, which the caller must close. ValueError if it is not open."""
    def __enter__(self) -> int: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class Mapping:
    """Anonymous memory, in huge pages if the kernel has them: zeros, or, if ``used``, perhaps bytes of old mappings.

    ``reserved``: the system refuses more than it has at once, instead of killing the process later.
    """
    def __init__(self, nbytes: int, used: bool = False, reserved: bool = False) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def keep_from_children(self) -> None:
        """Leave the memory out of processes forked from now on; a child that touches it gets SIGSEGV. NativeError."""
    def populate(self) -> None:
        """Fault all of it in, with several threads."""

class Slice:
    """A part of a mapping, as a writable buffer. When destroyed, it returns its pages to the system."""
    def __init__(self, mapping: Mapping, offset: int, nbytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class CopyBatch:
    """Copies of memory that threads share, made again and again, and the CRC-32s of the copies.

    ``copies``: target and source, both addresses, bytes, and the bytes of the blocks whose CRC-32s are computed: a
    power of two of up to 4 MiB.
    """
    def __init__(self, copies: Sequence[tuple[int, int, int, int]]) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def begin(self) -> None:
        """Begin anew: all copies are to be made."""
    def run(self, control: Control, most: int) -> bool:
        """Make copies of at least ``most`` bytes, if so many are left; return whether some may be left.

        Once ``control`` is cancelled, none is begun.
        """
    def crcs(self) -> list[int]:
        """Return the CRC-32 of each copy. NativeError unless all were made."""
    def block_crcs(self, copy: int) -> bytes:
        """Return those of the blocks of a copy, four native bytes each."""

class Digests:
    """Digests of copied memory, block by block, which find what changed in its source."""

    BLOCK: ClassVar[int]
    def __init__(self, blocks: int) -> None: ...
    def copy(self, first: int, target: int, source: int, nbytes: int) -> int:
        """Copy memory, given by addresses; return the CRC-32 of the copy."""
    def update(self, first: int, target: int, source: int, nbytes: int) -> bool:
        """Copy the blocks that changed since the last copy; return whether there were any."""
    def differs(self, first: int, source: int, nbytes: int) -> bool: ...

class ZipDirectory:
    """The directory of a zip file, with every number checked."""
    def __init__(
        self, fd: int, size: int, careful: bool = False, read: Callable[[int, int], bytes] | None = None
    ) -> None: ...
    def records(self, make: Callable[[str, int, int, int, int], _Made]) -> list[_Made]: ...
    def methods(self) -> list[tuple[int, bool, int]]:
        """Return (method, encrypted, inflated size) for each record, in file order."""

    @property
    def in_one_folder(self) -> bool: ...
    def why_odd(self) -> str:
        """Return why only torch's own reader can read the archive; empty if fastio can."""

    def mentioned(self, pickle: bytes) -> list[bool]:
        """Return for each record whether it is a storage that the pickle may use: all, if it cannot be parsed."""

    def confirm(self, address: int, offset: int, nbytes: int) -> bool:
        """Whether the local headers in memory (bytes of the file from ``offset`` on) confirm all data offsets there."""

class ZipBuilder:
    """Lays out a .pt file as torch does, before any of it is written."""
    def __init__(self, folder: str, alignment: int) -> None: ...
    def reserve(self, nbytes: int) -> None: ...
    def add_bytes(self, name: str, data: bytes) -> None: ...
    def add_memory(self, name: str, address: int, nbytes: int) -> None: ...
    def add_extent(self, name: str, nbytes: int) -> int: ...
    def finish(self) -> None: ...
    @property
    def size(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def runs(self) -> list[tuple[int, int, int]]: ...
    def patches(self) -> list[tuple[int, int]]: ...

def unpickle(
    data: bytes, names: dict[bytes, Any], calls: dict[Any, Callable[..., Any]], load: Callable[[Any], Any]
) -> tuple[Any] | None:
    """Return the object that a pickle holds, if it is a plain state dict; else None.

    ``names``: the object for each global (``b"module\nname"``). ``calls``: each function that may be called, and what
    is called in its place. ``load`` returns the storage for a persistent id. Their exceptions are raised.
    """

def pickle(
    object: Any,
    names: dict[Any, bytes],
    storages: dict[Any, type],
    rebuild: tuple[Callable[..., Any], Callable[..., Any]],
    locate: Callable[[Any], str],
    cpu: str | None,
    devices: frozenset[str],
) -> tuple[bytes, list[tuple[str, Any, int]], bool] | None:
    """Pickle a plain state dict in protocol 2, as Python and torch do. None for other objects.

    ``names``: the pickle bytes of each global. ``storages``: the storage class of each dtype. ``rebuild``: the
    functions that rebuild a tensor and a parameter. ``locate`` returns the location tag of a storage; ``cpu``: that of
    all CPU storages, or None. ``devices``: the other types of device whose tensors torch reduces as it does the CPU's.
    Returns the pickle, a list of (record name, storage, nbytes), and whether a storage ends within an element, which
    is left out.
    """

def unless_of(types: tuple[type, ...], function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that returns None for objects of exactly these types, and calls ``function`` for all others."""

class HeaderRows:
    """The entries of a safetensors header. ``in_order``: the names by offset, bytes and name.

    ``row`` is dtype, shape, begin and end of one. ``table_crc``: the CRC-32 of the sorted names, the dtypes and the
    shapes as JSON of three lists; None if a name is not of printable ASCII.
    """
    @property
    def in_order(self) -> list[str]: ...
    def row(self, index: int) -> tuple[str, list[int], int, int]: ...
    def table_crc(self) -> int | None: ...

def header_rows(
    text: bytes, itemsizes: dict[str, int], room: int
) -> tuple[HeaderRows, dict[str, int], bytes | None] | None:
    """Parse a safetensors header as most programs write it: the rows, the index of each name, text of the metadata.

    ``itemsizes`` has the bytes of an element of each dtype. None for a header that is unusual or wrong, as when the
    tensors do not fill ``room`` bytes without holes.
    """

def fault_signal(fd: int, nbytes: int) -> int:
    """Return the signal that kills a child process that maps a file and reads it: 0 if none, -1 if it cannot map it."""

def streaming_copy(target: int, source: int, nbytes: int) -> None:
    """Copy memory, given by addresses, that is not read again soon: large copies bypass the caches."""

def crc32(data: Any, value: int = 0) -> int: ...
def crc32_at(address: int, nbytes: int, value: int = 0) -> int: ...
def crc32_blocks(address: int, nbytes: int, block: int) -> bytes:
    """Return the CRC-32 of each block of memory, four native bytes each."""

def crc32_of_blocks(crcs: bytes, nbytes: int, block: int) -> int:
    """Return the CRC-32 of ``nbytes`` from those of its blocks."""

def crc32_combine(first: int, second: int, second_nbytes: int) -> int: ...
def crc32_kernel() -> str: ...
def memory_checksums(extents: Sequence[tuple[Any, ...]], threads: int) -> list[int]:
    """Return the CRC-32 of the host memory of each extent."""

def resident(fd: int, nbytes: int, sampled: bool = False) -> float: ...
def direct_alignment(fd: int) -> tuple[int, int] | None: ...
def allocate(fd: int, size: int) -> None: ...
def wait_closed() -> None: ...
def probe_ring() -> None: ...
def direct_write(
    fd: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    patches: Sequence[tuple[Any, ...]],
    block: int,
    depth: int,
    alignment: int,
    control: Control,
) -> tuple[list[int], bool]:
    """Return the CRC-32 of each extent, and whether memory changed, so that all was written again from copies."""

def direct_read(
    fd: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    span: tuple[int, int, int] | None,
    block: int,
    depth: int,
    alignment: int,
    threads: int,
    readers: int,
    control: Control,
) -> list[int]:
    """Return the CRC-32 of each extent. ``readers`` share a large read; ``threads`` of each do the I/O, 0: io_uring."""

def cached_write(
    fd: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    patches: Sequence[tuple[Any, ...]],
    block: int,
    threads: int,
    write_back: bool,
    control: Control,
) -> list[int]: ...
def cached_read(
    fd: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    span: tuple[int, int, int] | None,
    block: int,
    threads: int,
    cold: bool,
    control: Control,
) -> list[int]: ...
def cuda_copies() -> int:
    """Return the address of the table by which staged transfers reach CUDA devices. NativeError without a driver."""

def cuda_copy(stream: int, copies: Sequence[tuple[int, int, int]], to_host: bool) -> None:
    """Begin copies on a stream of torch: each from or to pinned memory, of an address there, one on a CUDA device, and
    the bytes. NativeError if one is refused.
    """

def staged_read(
    fd: int,
    direct: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    span: tuple[int, int, int] | None,
    devices: Sequence[int],
    copies: int,
    buffers: Sequence[int],
    window: int,
    control: Control,
) -> tuple[list[int], bool]:
    """Return the CRC-32 of each extent, and whether O_DIRECT was refused.

    ``direct``: the descriptor with O_DIRECT, or -1. ``devices``: of each extent the index of its device, or -1 for host
    memory. ``copies``: the address of the devices' table, or 0 if all memory is the host's. ``buffers``: addresses of
    staging memory, one a worker, of two windows each. ``window``: bytes, in whole pages.
    """

def staged_write(
    fd: int,
    direct: int,
    size: int,
    extents: Sequence[tuple[Any, ...]],
    patches: Sequence[tuple[Any, ...]],
    devices: Sequence[int],
    copies: int,
    buffers: Sequence[int],
    window: int,
    control: Control,
) -> tuple[list[int], bool]:
    """As :func:`staged_read`."""

def why_no_spdk() -> str: ...

class BlockStore:
    """Blocks on files or devices, by index; see fastio/offload/stores/block_store.py."""
    def __init__(
        self, devices: Sequence[tuple[int, int]] | Sequence[str], limit_blocks: int, driver: str, memory_alignment: int
    ) -> None: ...
    def issue(self, index: int, address: int, nbytes: int, write: bool) -> None: ...
    def update(self) -> int: ...
    def finished(self, indices: Sequence[int]) -> list[int]: ...
    def is_done(self, index: int) -> tuple[bool, tuple[int, bool, int, int, bool, int] | None]: ...
    def wait(self, index: int) -> tuple[int, bool, int, int, bool, int] | None: ...
    def free(self, index: int) -> None: ...
    def contains(self, index: int) -> bool: ...
    def map(self, address: int, nbytes: int) -> None: ...
    def unmap(self, address: int) -> None: ...
    def peek(
        self, device: int, block: int, address: int, nbytes: int
    ) -> tuple[int, bool, int, int, bool, int] | None: ...
    def poke(
        self, device: int, block: int, address: int, nbytes: int
    ) -> tuple[int, bool, int, int, bool, int] | None: ...
    def devices(self) -> list[tuple[str, int, int, str, str]]: ...
    def close(self) -> None: ...
    def set_recording(self, recording: bool) -> None: ...
    def trace(self) -> list[tuple[bool, int, int, int]]: ...
    def notes(self) -> list[str]: ...
    def stats(self) -> dict[str, int]: ...

class VfioPeer:
    """A BAR of a PCI device, as memory; see fastio/nvme/bar_memory.py."""
    def __init__(self, pci: str, bar: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def close(self) -> None: ...

def dma_buf_refusal() -> str: ...
def nvme_status(status: int) -> str: ...
def csr_kernels() -> list[str]: ...
def csr_nbytes(elements: int, itemsize: int, nonzeros: int) -> int: ...
def csr_count(source: int, elements: int, itemsize: int, kernel: str = "") -> int: ...
def csr_encode(source: int, elements: int, itemsize: int, payload: int, nbytes: int, kernel: str = "") -> None: ...
def csr_decode(payload: int, nbytes: int, destination: int, elements: int, itemsize: int, kernel: str = "") -> None: ...
def exponents_nbytes(source: int, elements: int) -> int: ...
def exponents_encode(source: int, elements: int, payload: int, nbytes: int) -> None: ...
def exponents_decode(payload: int, nbytes: int, destination: int, elements: int) -> None: ...
