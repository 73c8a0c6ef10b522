"""Aborts the parts of an upload to S3 that was interrupted: nobody sees them, but they cost storage.

s3fs does so after errors, but not where its coroutine is cancelled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.errors import FastIOError
from fastio.remote.place import Place


@contextlib.contextmanager
def aborted_on_interrupt(place: Place) -> Iterator[None]:
    """Inside, a file is uploaded. If that is interrupted, uploads of it in parts that began inside are aborted."""
    if not hasattr(place.fs, "call_s3"):
        yield
        return
    try:
        yield
    except BaseException as error:
        if isinstance(error, FastIOError) or not isinstance(error, Exception):  # s3fs has aborted after its own ones
            with contextlib.suppress(Exception):
                _abort(place)
        raise


def _abort(place: Place) -> None:
    bucket, key, _ = place.fs.split_path(place.path)
    found = place.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
    for one in found.get("Uploads", ()):
        if one["Key"] == key:
            place.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=one["UploadId"])
