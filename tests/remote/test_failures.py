"""Uploads and downloads that fail, are interrupted or killed: nothing half-written is seen or stays."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
import torch
from click.testing import CliRunner

import fastio
import warm_python
from fastio_command.commands import cli
from remote_places import RangedStore, equal, names_below

URL = "ranged://bucket/it.pt"
STATE = {"value": torch.arange(1000.0)}
NEW = {"value": -STATE["value"]}


class NoCredentialsError(Exception):
    """As botocore's: no OSError."""


@pytest.mark.parametrize(
    ("error", "kind", "cure"),
    [
        (NoCredentialsError("Unable to locate credentials"), PermissionError, "give credentials that may do this"),
        (PermissionError("Access Denied"), PermissionError, "give credentials that may do this"),
        (FileNotFoundError("The specified bucket does not exist"), FileNotFoundError, "whether the bucket"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), ConnectionRefusedError, "the network"),
        (KeyError("surprise"), OSError, "check the URL, the credentials and the network"),
        (TimeoutError(), TimeoutError, "the network"),
    ],
    ids=lambda value: getattr(type(value), "__name__", ""),
)
@pytest.mark.parametrize("operation", ["info", "cat_file", "put_file"])
def test_errors_of_a_place_name_url_cause_and_cure(
    store: type[RangedStore], cache: Path, operation: str, error: Exception, kind: type[OSError], cure: str
) -> None:
    fastio.save(STATE, URL)

    def hook(called: str, path: str) -> None:
        if called == operation:
            raise error

    store.hook = hook
    with pytest.raises(fastio.RemoteError, match=cure) as caught:
        fastio.save(NEW, URL) if operation == "put_file" else fastio.load(URL)
    assert isinstance(caught.value, kind)
    assert caught.value.filename == URL
    assert str(error.args[-1] if error.args else "TimeoutError") in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    store.hook = None
    assert equal(fastio.load(URL), STATE)
    assert not [*cache.glob("staging/*"), *cache.glob("files/*.part")]


SECRETS = {
    "plain": "ranged://me:pa55@word@bucket/{}?name=s3cret&sig=s3cret",
    "spaces": "ranged://me:pa55 a word@bucket/{}?name=s3cret a tw0&sig=s3cret thr33",
    "quotes": "ranged://me:pa55\"a'word@bucket/{}?name=s3cret\"a'tw0&sig=s3cret'thr33",
}


@pytest.mark.parametrize(
    ("secret", "operation"),
    [
        *(
            pytest.param(SECRETS["plain"], operation, id=operation)
            for operation in ("info", "cat_file", "put_file", "")
        ),
        *(pytest.param(secret, "cat_file", id=name) for name, secret in SECRETS.items() if name != "plain"),
    ],
)
def test_no_text_has_the_secrets_of_a_url(
    store: type[RangedStore], secret: str, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = secret.format("it.pt")
    told = []

    def hook(called: str, path: str) -> None:
        if called == operation:
            raise ConnectionError(f"cannot get {url} of {path}")

    def wrong(call: Callable[[], object]) -> None:
        with pytest.raises(Exception) as caught:  # noqa: PT011 of many classes
            call()
        told.extend(["".join(traceback.format_exception(caught.value)), repr(caught.value), str(caught.value)])

    with fastio.record() as transfers:
        fastio.save(STATE, url)
        fastio.load(url)
        model = torch.nn.Linear(3, 2)
        fastio.save_file(dict(model.state_dict()), secret.format("m.safetensors"))
        with fastio.safe_open(secret.format("m.safetensors")) as file:
            told += [repr(file), repr(file.get_slice("weight"))]
            wrong(lambda: file.get_tensor("none"))
        with fastio.Checkpointer(secret.format("run")) as checkpointer:
            told.append(repr(checkpointer))
        store.hook = hook
        (name,) = (one for one in store.objects if "/it.pt" in one)
        store.objects[name] = b"x" * 100  # no copy in the cache is of it
        if operation:
            wrong(lambda: fastio.save(NEW, url) if operation == "put_file" else fastio.load(url))
        store.hook = None
        for call in (fastio.load, fastio.verify, fastio.explain, fastio.load_file):
            wrong(lambda call=call: call(url))
        wrong(lambda: fastio.load_model(model, url))
        wrong(lambda: fastio.load(secret.format("none.pt")))
        wrong(lambda: fastio.save(STATE, url + "/"))
        wrong(lambda: fastio.Checkpointer(url, incremental=True))
        wrong(lambda: fastio.distributed.Writer(url))
    told += [repr(transfers), *(str(one) for one in transfers), caplog.text]
    for command in ("inspect", "verify", "explain"):
        told.append(CliRunner().invoke(cli, [command, url]).output)
        told.append(CliRunner().invoke(cli, [command, "--json", url]).output)
    assert len([text for text in told if "***" in text]) > 10
    for text in told:
        assert not re.search("pa55|word@|s3cret|tw0|thr33", text), text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://token@host/a b.pt?X-Sig=a%2F&b=2#end", "https://***@host/a b.pt?X-Sig=***&b=***#end"),
        ("simplecache::sftp://me:a:b@host:22/x", "simplecache::sftp://***@host:22/x"),
        ("https://me:pa's@host/x?sig[0]=a's", "https://***@host/x?sig[0]=***"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("s3://bucket/run@10:30/why?.pt", "s3://bucket/run@10:30/why?.pt"),
        ("/folder/a?b=c", "/folder/a?b=c"),
    ],
)
def test_only_secrets_are_hidden(url: str, shown: str) -> None:
    error = fastio.RemoteError(errno.ENOENT, "reading", "there is none", "check the name", url)
    quote = '"' if "'" in url else "'"  # as repr has it
    assert str(error) == f"[Errno 2] reading failed: there is none; check the name: {quote}{shown}{quote}"
    assert error.filename == url


def test_a_url_of_this_machine_by_name(tmp_path: Path) -> None:
    fastio.save(STATE, f"file://localhost{tmp_path}/it.pt")
    assert equal(torch.load(tmp_path / "it.pt"), STATE)
    for begin in ("file://localhost", "simplecache::file://localhost", "file://"):
        assert equal(fastio.load(f"{begin}{tmp_path}/it.pt"), STATE)


def test_a_short_answer_is_no_file(store: type[RangedStore], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastio.save(STATE, URL)
    cat = store._cat_file

    async def short(fs: RangedStore, path: str, start: int, end: int) -> bytes:
        return (await cat(fs, path, start, end))[:-1]

    monkeypatch.setattr(store, "_cat_file", short)
    with pytest.raises(fastio.RemoteError, match=r"the place gave .* from byte 0, expected"):
        fastio.load(URL)
    assert not [*cache.glob("files/*")]


def test_a_short_upload_is_told(store: type[RangedStore], monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(fs: RangedStore, lpath: str, rpath: str) -> None:
        await fs._pipe_file(rpath, b"half")

    monkeypatch.setattr(store, "_put_file", lost)
    with pytest.raises(fastio.RemoteError, match=r"the place has 4 bytes, expected .*; save it again"):
        fastio.save(STATE, URL)


@pytest.mark.parametrize("operation", ["write", "mv"])
def test_a_failed_save_to_files_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    url, local = f"file://{tmp_path}/it.pt", fsspec.filesystem("file")
    fastio.save(STATE, url)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(local), "mv" if operation == "mv" else "_open", fail)
    with pytest.raises(fastio.RemoteError, match="No space left on device; make room there"):
        fastio.save(NEW, url)
    monkeypatch.undo()
    assert names_below(f"file://{tmp_path}") == {"it.pt"}
    assert torch.equal(torch.load(tmp_path / "it.pt")["value"], STATE["value"])


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_save_does_not_replace_a_folder(tmp_path: Path, scheme: str) -> None:
    fastio.save(STATE, (url := f"{scheme}://{tmp_path}") + "/it.pt")
    with pytest.raises(fastio.RemoteError, match="there is a folder of this name; name a file in it") as caught:
        fastio.save(NEW, url)
    assert isinstance(caught.value, IsADirectoryError)
    assert names_below(url) == {"it.pt"}


def test_what_cannot_be_saved_names_the_url(store: type[RangedStore], cache: Path) -> None:
    with pytest.raises(fastio.UnpicklableError, match=f"^{URL}: "):
        fastio.save({"function": lambda: 1}, URL)
    with pytest.raises(fastio.FormatError, match=r"^ranged://bucket/it\.safetensors: "):
        fastio.save({"value": 1}, "ranged://bucket/it.safetensors")
    with pytest.raises(fastio.UnsupportedError, match="it names a folder"):
        fastio.save(STATE, "ranged://bucket/")
    fastio.save(STATE, URL)
    with pytest.raises(IsADirectoryError, match="this is a folder"):
        fastio.load("ranged://bucket")
    assert not [*cache.glob("staging/*")]


@pytest.mark.parametrize("operation", ["put_file", "cat_file"])
def test_an_interrupt_ends_a_transfer(store: type[RangedStore], cache: Path, operation: str) -> None:
    fastio.save(STATE, URL)
    may_end, has_ended = threading.Event(), threading.Event()

    def hook(called: str, path: str) -> None:
        if called == operation:
            os.kill(os.getpid(), signal.SIGINT)
            may_end.wait(30)
            has_ended.set()

    store.hook = hook
    with pytest.raises(KeyboardInterrupt):
        fastio.save(NEW, URL) if operation == "put_file" else fastio.load(URL)
    store.hook = None
    may_end.set()
    assert has_ended.wait(30)
    names_below("ranged://bucket")  # by the thread that would go on with the transfer
    assert not [*cache.glob("staging/*"), *cache.glob("files/*.part")]
    assert equal(fastio.load(URL), STATE)


def test_a_killed_upload_leaves_the_old_file(tmp_path: Path, cache: Path) -> None:
    url = f"file://{tmp_path}/place/it.pt"
    (tmp_path / "place").mkdir()
    fastio.save(STATE, url)
    code = """
import os, signal, sys, torch, fastio
from fastio.remote import upload
upload._check = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
fastio.save(torch.ones(9), sys.argv[1])
"""
    assert warm_python.run(code, url, timeout=60).returncode == -signal.SIGKILL
    assert equal(fastio.load(url), STATE)
    (left,) = names_below(f"file://{tmp_path}/place") - {"it.pt"}
    assert len([*cache.glob("staging/*")]) == 1
    fastio.save(NEW, url)
    assert names_below(f"file://{tmp_path}/place") == {"it.pt", left}, "its writer may be at work elsewhere"
    assert not [*cache.glob("staging/*")]
    os.utime(tmp_path / "place" / left, times=(0, time.time() - 25 * 3600))
    fastio.save(STATE, url)
    assert names_below(f"file://{tmp_path}/place") == {"it.pt"}
    assert equal(fastio.load(url), STATE)


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("nowhere://bucket/it.pt", "Protocol not known: nowhere; check how the URL begins"),
        ("S3://bucket/it.pt", "Protocol not known: S3; check how the URL begins: s3://"),
        ("oci://bucket@space/it.pt", "[Ii]nstall.*ocifs.*; install that"),
        ("file:///folder/a::b.pt", "ends in 'b.pt', expected a URL after each '::'; use a name without"),
    ],
)
def test_what_is_not_installed_is_told(url: str, cure: str) -> None:
    for call in (lambda: fastio.load(url), lambda: fastio.save(STATE, url), lambda: fastio.Checkpointer(url)):
        with pytest.raises(fastio.RemoteError, match=cure):
            call()


def test_a_url_that_pathlib_cut_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = Path("s3://bucket")
    with pytest.raises(fastio.UnsupportedError, match="expected s3://bucket: pass URLs as text"):
        fastio.save_model(torch.nn.Linear(2, 2), url)
    with pytest.raises(fastio.UnsupportedError, match="expected s3://bucket: pass URLs as text"):
        fastio.Checkpointer(url)
    assert not [*tmp_path.iterdir()]
    fastio.save_model(torch.nn.Linear(2, 2), f"./{url}")
    assert (tmp_path / "s3:" / "bucket" / "model.safetensors").exists()


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(fastio.RemoteError, match=r"fsspec is not installed .*; pip install .*fsspec"):
        fastio.load("s3://bucket/it.pt")


def test_fsspec_is_not_imported_for_files_of_this_machine(tmp_path: Path) -> None:
    code = (
        "import sys, fastio, fastio.models, fastio.checkpoint; fastio.save([1], 'it.pt'); fastio.load('it.pt')\n"
        "print([name for name in sys.modules if name.startswith(('fsspec.core', 'fastio.remote.place'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Refusing(BaseHTTPRequestHandler):
    """Answers with the status that a path begins with; "drop" ends the connection without an answer."""

    def do_GET(self) -> None:
        status = self.path[1:].partition(".")[0]
        if status != "drop":
            self.send_response(int(status))
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("404.pt", FileNotFoundError, "check the URL: whether"),
        ("410.pt", FileNotFoundError, "check the URL: whether"),
        ("401.pt", PermissionError, "401.*; give credentials that may do this"),
        ("403.pt?sig=s3%2Fcret%2B", PermissionError, "403.*; give credentials that may do this"),
        ("500.pt", OSError, "500.*; check the URL, the credentials and the network"),
        ("drop.pt", OSError, "Server disconnected; check the URL, the credentials and the network"),
    ],
)
def test_only_what_a_web_server_does_not_have_is_not_found(cache: Path, name: str, kind: type, said: str) -> None:
    """fsspec calls all of these a missing file; a missing folder of checkpoints would begin a training anew."""
    pytest.importorskip("aiohttp")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        with pytest.raises(fastio.RemoteError, match=said) as caught:
            fastio.load(url)
        assert isinstance(caught.value, FileNotFoundError) == (kind is FileNotFoundError)
        assert isinstance(caught.value, kind)
        assert "cret" not in str(caught.value)
        with pytest.raises(fastio.CheckpointError if kind is FileNotFoundError else fastio.RemoteError):
            fastio.Checkpointer(url, read_only=True)
        server.shutdown()
    with pytest.raises(fastio.RemoteError) as caught:
        fastio.load(url)
    assert isinstance(caught.value, ConnectionRefusedError)
