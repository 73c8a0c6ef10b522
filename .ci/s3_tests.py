"""Runs the tests of remote places with a server of S3 on this machine, moto's. It needs moto and s3fs on the path."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "fastio-tests"


def main() -> int:
    """Start the server, run the tests, and return their exit status. Arguments are pytest's."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FASTIO_TEST_BUCKET": f"s3://{BUCKET}",
        "PYTHONPATH": os.path.abspath(os.environ.get("PYTHONPATH", "")),
    }
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or it tells every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        command = [ROOT / ".venv" / "bin" / "pytest", "-q", "tests/remote", "-m", "nightly or not nightly"]
        return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, check=False).returncode
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
