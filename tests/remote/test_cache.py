"""The cache: what is downloaded, when again, by whom, and what goes first."""

from __future__ import annotations

import os
import signal
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch

import fastio
import warm_python
from fastio.remote import cache_folder
from remote_places import RangedStore, equal

URL = "ranged://bucket/it.pt"
STATE = {"value": torch.arange(1000.0)}


def read_by_name(url: str) -> None:
    with fastio.safe_open(url) as file:
        file.get_tensor("value")


def save(state: dict[str, torch.Tensor], url: str) -> None:
    """By one tool, so that files of the same tensors have the same length."""
    fastio.save(state, url, policy="posix")


def copies(cache: Path) -> list[Path]:
    return sorted((cache / "files").iterdir())


def test_a_file_is_downloaded_once_until_it_changes(store: type[RangedStore], cache: Path) -> None:
    save(STATE, URL)
    for _ in range(3):
        assert equal(fastio.load(URL), STATE)
    assert store.count("cat_file") == 1
    save({"value": -STATE["value"]}, URL)  # of the same length
    assert equal(fastio.load(URL), {"value": -STATE["value"]})
    assert store.count("cat_file") == 2
    assert len(copies(cache)) == 1, "the copy of the file before is of no use"


def test_a_changed_file_of_this_machine_is_read_anew(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/it.pt"
    for number in range(3):
        torch.save(torch.full((10,), float(number)), tmp_path / "it.pt")
        assert fastio.load(url)[0] == number


def test_a_place_without_versions_is_read_each_time(store: type[RangedStore], cache: Path) -> None:
    store.has_versions = False
    save(STATE, URL)
    for number in (1, 2):
        assert equal(fastio.load(URL), STATE)
        assert store.count("cat_file") == number
    assert not copies(cache)


def test_times_of_whole_seconds_do_not_tell_new_files_apart(store: type[RangedStore], cache: Path) -> None:
    store.has_versions, store.modified = False, datetime.now(timezone.utc).replace(microsecond=0)
    for sign in (1, -1):  # in one second, and of one length
        save({"value": sign * STATE["value"]}, URL)
        assert equal(fastio.load(URL), {"value": sign * STATE["value"]})
    assert not copies(cache)
    store.modified -= timedelta(hours=1)
    for _ in range(2):
        fastio.load(URL)
    assert store.count("cat_file") == 3


def test_ranges_are_joined_and_compared(store: type[RangedStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.remote.download._CHUNK", 10_000)
    state = {"value": torch.arange(100_001.0)}
    save(state, URL)
    assert equal(fastio.load(URL, mmap=True), state)
    assert store.count("cat_file") == -(-len(store.objects["bucket/it.pt"]) // 10_000)


def test_the_least_recently_used_copies_go(
    store: type[RangedStore], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"ranged://bucket/{number}.pt" for number in range(4)]
    for url in urls:
        save(STATE, url)
    size = len(store.objects["bucket/0.pt"])
    monkeypatch.setenv("FASTIO_CACHE_SIZE", str(3 * size))
    oldest = set()
    for url in urls[:3]:
        fastio.load(url)
        (copy,) = {*copies(cache)} - oldest
        os.utime(copy, ns=(len(oldest), copy.stat().st_mtime_ns))
        oldest.add(copy)
    fastio.load(urls[0])
    fastio.load(urls[3])  # the second one was not used for the longest time
    assert sum(path.stat().st_size for path in copies(cache)) == 3 * size
    before = store.count("cat_file")
    for url in (urls[0], urls[2], urls[3]):
        fastio.load(url)
    assert store.count("cat_file") == before
    fastio.load(urls[1])
    assert store.count("cat_file") == before + 1


def test_a_copy_in_use_stays(store: type[RangedStore], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("it.safetensors", "other.safetensors")
    for name in names:
        fastio.save_file(STATE, f"ranged://bucket/{name}")
    monkeypatch.setenv("FASTIO_CACHE_SIZE", "1")
    with fastio.safe_open(f"ranged://bucket/{names[0]}") as file:
        fastio.load_file(f"ranged://bucket/{names[1]}")
        assert len(copies(cache)) == 2
        assert equal(dict(file.tensors()), STATE)
    save(STATE, URL)
    fastio.load(URL)
    assert len(copies(cache)) == 1
    mapped = fastio.load(URL, mmap=True)
    fastio.load_file(f"ranged://bucket/{names[0]}")
    assert equal(mapped, STATE), "a mapped file may be removed, but not cut"


def test_two_readers_download_once(store: type[RangedStore]) -> None:
    save(STATE, URL)
    has_begun, may_end = threading.Event(), threading.Event()
    found: list[bool] = []

    def hook(operation: str, path: str) -> None:
        if operation == "cat_file":
            has_begun.set()
            assert may_end.wait(60)

    def read() -> None:
        found.append(equal(fastio.load(URL), STATE))

    store.hook = hook
    readers = [threading.Thread(target=read) for _ in range(3)]
    readers[0].start()
    assert has_begun.wait(60)
    for reader in readers[1:]:
        reader.start()
    may_end.set()
    for reader in readers:
        reader.join(60)
    assert found == [True] * 3
    assert store.count("cat_file") == 1


def test_a_file_that_is_replaced_meanwhile_is_read_again(store: type[RangedStore], cache: Path) -> None:
    save(STATE, URL)
    save({"value": torch.arange(7.0)}, "ranged://bucket/shorter.pt")
    save({"value": -STATE["value"]}, "ranged://bucket/new.pt")
    later = ["shorter", "new"]

    def hook(operation: str, path: str) -> None:
        if operation == "cat_file":
            store.objects["bucket/it.pt"] = store.objects[f"bucket/{later.pop(0) if later else 'new'}.pt"]

    store.hook = hook
    assert equal(fastio.load(URL), {"value": -STATE["value"]})

    def again(operation: str, path: str) -> None:
        if operation == "cat_file":
            store.objects[path] += b"more"

    store.hook = again
    with pytest.raises(fastio.RemoteError, match="it was replaced 3 times meanwhile; load it when it is complete"):
        fastio.load("ranged://bucket/new.pt")
    assert len(copies(cache)) == 1


def test_a_damaged_copy_is_downloaded_again(store: type[RangedStore], cache: Path) -> None:
    save(STATE, URL)
    fastio.save_file(STATE, "ranged://bucket/it.safetensors")
    for url in (URL, "ranged://bucket/it.safetensors"):
        fastio.load(url)
        (copy,) = copies(cache)
        status = copy.stat()
        data = bytearray(copy.read_bytes())
        at = data.index(STATE["value"].numpy().tobytes())
        data[at : at + 8] = b"\xff" * 8
        copy.write_bytes(data)
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(fastio.CorruptFileError, match=url):
            fastio.load(url) if url == URL else read_by_name(url)
        assert equal(fastio.load(url), STATE)
        copies(cache)[0].unlink()


@pytest.mark.parametrize("nbytes", [0, 100, 10_000])
def test_a_copy_of_another_length_is_not_used(store: type[RangedStore], cache: Path, nbytes: int) -> None:
    save(STATE, URL)
    fastio.load(URL)
    os.truncate(copies(cache)[0], nbytes)
    assert equal(fastio.load(URL), STATE)
    assert len(copies(cache)) == 1


def test_a_killed_download_leaves_what_the_next_one_removes(tmp_path: Path, cache: Path) -> None:
    state = {"value": torch.arange(10_000_000.0)}  # 40 MB: three chunks
    for name in ("one.pt", "two.pt"):
        torch.save(state, tmp_path / name)
    code = """
import os, signal, sys, fastio
from fastio.remote import download
write_all, count = download.write_all, 0
def killed(*arguments):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    write_all(*arguments)
download.write_all = killed
fastio.load(sys.argv[1])
"""
    for name in ("one.pt", "two.pt"):
        killed = warm_python.run(code, f"file://{tmp_path}/{name}", timeout=60)
        assert killed.returncode == -signal.SIGKILL
    # The second one has removed what the first one left.
    assert [path.suffix for path in copies(cache)] == [cache_folder.PART]
    assert equal(fastio.load(f"file://{tmp_path}/two.pt"), state)
    assert [path.suffix for path in copies(cache)] == [""]


def test_processes_that_read_at_once(tmp_path: Path, cache: Path) -> None:
    torch.save(torch.arange(3_000_000.0), tmp_path / "it.pt")
    code = "import sys, fastio; print(int(fastio.load(sys.argv[1])[-1]))"
    readers = [
        warm_python.WarmPopen([warm_python.sys.executable, "-c", code, f"file://{tmp_path}/it.pt"], stdout=-1)
        for _ in range(3)
    ]
    assert [reader.communicate(timeout=60)[0] for reader in readers] == [b"2999999\n"] * 3
    assert len(copies(cache)) == 1


def test_a_size_that_is_none_is_told(store: type[RangedStore], monkeypatch: pytest.MonkeyPatch) -> None:
    save(STATE, URL)
    monkeypatch.setenv("FASTIO_CACHE_SIZE", "much")
    with pytest.raises(ValueError, match="FASTIO_CACHE_SIZE='much' is no size"):
        fastio.load(URL)


def test_an_empty_size_is_the_default(store: type[RangedStore], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTIO_CACHE_SIZE", "")
    save(STATE, URL)
    assert equal(fastio.load(URL), STATE)


def test_a_cache_that_cannot_be_made_is_told(
    store: type[RangedStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FASTIO_CACHE", str(tmp_path / "file"))
    with pytest.raises(fastio.TransferError, match="FASTIO_CACHE"):
        fastio.save(STATE, URL)
