"""What S3 alone does: uploads in parts, missing buckets and credentials. Runs with a server: .ci/s3_tests.py."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import fastio

BUCKET = os.environ.get("FASTIO_TEST_BUCKET", "")
pytestmark = pytest.mark.skipif(not BUCKET, reason="no server of S3")
LARGE = {"value": torch.arange(30_000_000.0)}  # 120 MB: two parts, and several ranges


@pytest.fixture
def url() -> str:
    return f"{BUCKET}/{uuid.uuid4().hex}/it.pt"


def test_parts_and_ranges(url: str) -> None:
    fastio.save(LARGE, url)
    assert torch.equal(fastio.load(url)["value"], LARGE["value"])


@pytest.mark.parametrize("part", [0, 1])
def test_an_interrupted_upload_in_parts_leaves_nothing(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    fs: Any = fsspec.filesystem("s3")
    call, seen = type(fs)._call_s3, []

    async def interrupted(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "upload_part":
            seen.append(method)
            if len(seen) == part + 1:
                os.kill(os.getpid(), signal.SIGINT)
        return await call(self, method, *arguments, **named)

    fastio.save({"value": torch.ones(3)}, url)
    monkeypatch.setattr(type(fs), "_call_s3", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fastio.save(LARGE, url)
    monkeypatch.undo()
    bucket = BUCKET.removeprefix("s3://")
    assert not fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads")
    assert not [*cache.glob("staging/*")]
    assert torch.equal(fastio.load(url)["value"], torch.ones(3))


def test_a_missing_bucket() -> None:
    for call in (fastio.load, lambda url: fastio.save(LARGE["value"][:3], url)):
        with pytest.raises(fastio.RemoteError, match="whether the bucket") as caught:
            call("s3://no-such-bucket/it.pt")
        assert isinstance(caught.value, FileNotFoundError)
    with fastio.Checkpointer("s3://no-such-bucket/run") as checkpointer:
        handle = checkpointer.save(1, {"value": torch.ones(3)})
        with pytest.raises(FileNotFoundError, match="whether the bucket"):
            handle.written.result()


def test_no_credentials(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(fastio.RemoteError, match="give credentials that may do this"):
        fastio.load(url)
    fsspec.filesystem("s3").clear_instance_cache()


def test_a_server_that_is_not_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(fastio.RemoteError, match="check the URL, the credentials and the network"):
        fastio.load(url)
    fsspec.filesystem("s3").clear_instance_cache()
