"""The default dictionaries of each filesystem and machine, kept on disk; and those that callers name by path."""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable

from platformdirs import user_cache_dir

from fastio import config
from fastio.dicts import fingerprint
from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, Dictionary, RDic, WDic
from fastio.dicts.fingerprint import Fingerprint
from fastio.dicts.shipped import shipped_rules
from fastio.dicts.storage import Store
from fastio.dicts.wrdic import MODES, WRDic
from fastio.files.open_file import path_of
from fastio.runtime.gc_pause import gc_paused

MOST_NAMED = 16
SMALL_NBYTES = 8 << 20  # reading the learned times takes a millisecond, a third of a load of 3 MB

_Signature = tuple[int, int, int]


class _Set:
    """WDic and RDic of one fingerprint, the store that keeps them on disk, and the dictionary of each mode."""

    def __init__(self, marks: Fingerprint, folder: str | None) -> None:
        renew = _renew()
        wdic, rdic = WDic(renew=renew), RDic(renew=renew)
        path = None if folder is None else os.path.join(folder, marks.file_name)
        self.store = Store(path, marks, (wdic, rdic))
        self.by_mode: dict[str, Dictionary] = {mode: WRDic(wdic, rdic, mode=mode) for mode in MODES}
        self.by_mode.update(save=wdic, load=rdic)


class _FirstTransfer(Dictionary):
    """The dictionary of a process's first small transfer: chooses by the priors, before any file is read.

    Most programs make one such call. The dictionary that replaces it gets the time of that call when it is read: at the
    second transfer, at the first large one, or at exit.
    """

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        self._reports: list[Callable[[Dictionary], None]] = []
        self._successor: Dictionary | None = None

    def observe(self, context: Context, nbytes: int, tool: str, seconds: float) -> None:
        self._report(lambda dictionary: dictionary.observe(context, nbytes, tool, seconds))

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        self._report(lambda dictionary: dictionary.fail(context, nbytes, tool, reason))

    def hand_over(self, successor: Dictionary) -> None:
        """Report what was observed to the dictionary, and from now on at once."""
        with LOCK:
            self._successor = successor
            while self._reports:
                self._reports.pop(0)(successor)

    def _report(self, report: Callable[[Dictionary], None]) -> None:
        with LOCK:
            if self._successor is None:
                self._reports.append(report)
            else:
                report(self._successor)


_first: dict[int, _FirstTransfer] = {}
_by_device: dict[int, _Set] = {}
_by_name: dict[str, _Set] = {}
_OPERATIONS = ("save", "load", *MODES)
_named: dict[str, tuple[_Signature, Dictionary]] = {}


def default(op: str, directory: str, nbytes: int | None = None) -> Dictionary:
    """The default dictionary for files in a directory.

    ``op`` is ``"save"`` (its WDic), ``"load"`` (its RDic), or a mode: ``"w"``, ``"r"`` or ``"w+r"``. The first call for
    a filesystem reads its file, except for a transfer of less than 8 MiB (:class:`_FirstTransfer`). The state of the
    disk raises no error.
    """
    if op not in _OPERATIONS:
        raise ValueError(f"op={op!r}: expected one of {', '.join(_OPERATIONS)}")
    if not isinstance(directory, str):
        directory = path_of("directory", directory)
    device = _device(directory or ".")
    if device < 0:
        directory = _existing(directory)
        device = _device(directory)
    with LOCK:
        found = _by_device.get(device)
        if found is None:
            if nbytes is not None and nbytes < SMALL_NBYTES and device not in _first:
                _first[device] = _FirstTransfer(directory)
                return _first[device]
            with gc_paused():  # it would look at all of torch's objects, which takes 100 ms
                found = _make(device, directory)
        return found.by_mode[op]


def dictionary_at(path: str) -> Dictionary:
    """The frozen dictionary of a file that the caller named.

    The file is read once, and again when it changes. It is never written to.

    Raises DictionaryError if it is missing or damaged.
    """
    key = os.path.abspath(path)
    try:
        status = os.stat(key)
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError:
        signature = (0, 0, 0)
    known = _named.get(key)
    if known is None or known[0] != signature:
        known = signature, Dictionary.load(path, learn=False)
        with LOCK:
            if len(_named) >= MOST_NAMED:
                del _named[next(iter(_named))]
            _named[key] = known
    return known[1]


def warm_up() -> None:
    """Read what a first call would otherwise wait for."""
    shipped_rules()
    fingerprint.machine()
    folder()


def flush() -> None:
    """Write what the default dictionaries learned since the last write."""
    with LOCK:
        for device, first in list(_first.items()):
            if device not in _by_device:
                _make(device, first.directory)
    for kept in list(_by_name.values()):
        kept.store.write()


def forget() -> None:
    """Drop the default dictionaries and those named by path, unwritten. The next call reads them from disk again."""
    with LOCK:
        _first.clear()
        _by_device.clear()
        _by_name.clear()
        _named.clear()


def _make(device: int, directory: str) -> _Set:
    marks = fingerprint.of(directory)
    name = marks.file_name
    if name not in _by_name:
        _by_name[name] = _Set(marks, folder())
    made = _by_device[device] = _by_name[name]
    if device in _first:
        _first[device].hand_over(made.by_mode["w+r"])
    return made


def folder() -> str | None:
    """The folder of the dictionaries; None if it would be in the home directory of a user who has none."""
    path = str(config.get("dictionary_dir"))
    try:
        path = os.path.expanduser(path or user_cache_dir("fastio", appauthor=False))
    except RuntimeError:  # platformdirs without a home directory; its older versions leave the ~, as Python does
        return None
    return None if path.startswith("~/") else os.path.abspath(path)


def _renew() -> str:
    renew = str(config.get("renew"))
    try:
        WDic(renew=renew)
    except ValueError as error:
        warnings.warn(f"FASTIO_RENEW is ignored: {error}", RuntimeWarning, stacklevel=2)
        return ""
    return renew


def _device(directory: str) -> int:
    try:
        return os.stat(directory).st_dev
    except OSError:
        return -1


def _existing(directory: str) -> str:
    """The nearest directory above this one that exists."""
    path = os.path.abspath(directory)
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _after_fork_in_child() -> None:
    _first.clear()  # the parent reports their times
    for kept in _by_name.values():
        kept.store.mark_written()


atexit.register(flush)
os.register_at_fork(after_in_child=_after_fork_in_child)
