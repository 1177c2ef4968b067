"""An S3 server on loopback, how tests point every client at it, and what they find in it."""

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sonde
from processes import FILES
from stores import at

SECRET = "hunter2/of/course"
KEY = "AKIANOTAREALKEY"


@contextmanager
def serving() -> Iterator[str]:
    """The address of moto's server."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """An endpoint and credentials where S3's users keep them."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }


def new_bucket(server: str) -> str:
    """The URL of an empty bucket."""
    import boto3

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=server).create_bucket(Bucket=name)
    return f"s3://{name}"


def use(endpoint: str, patch: pytest.MonkeyPatch) -> None:
    """Let every client of this process from here on, and of commands it starts, ask this endpoint."""
    from s3fs import S3FileSystem

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        patch.delenv(name, raising=False)
    for name, value in environment(endpoint).items():
        patch.setenv(name, value)
    S3FileSystem.clear_instance_cache()


def assert_same_runs(url: str, folder: Path) -> None:
    """The same ids, and every file but the manifest, which holds times, bit for bit."""
    stored, local = at(url), sonde.load(folder)
    assert {run.id for run in sonde.load(url).runs} == {run.id for run in local.runs}
    for run in local.runs:
        assert sorted(path.name for path in (stored / run.id).iterdir()) == sorted(
            path.name for path in (folder / run.id).iterdir()
        ), "something was left behind or lost"
        for file in FILES:
            assert (stored / run.id / file).read_bytes() == (folder / run.id / file).read_bytes(), file
    assert sonde.load(url).rows.equals(local.rows)
    assert not any(name.startswith(".locks/") for name in stored.walk()), "a lease was not released"
