"""An imitation of S3 in this process, with a bucket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer


@contextmanager
def serve_bucket() -> Iterator[str]:
    """Start the server, and stop it at the end; its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    names = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **names).create_bucket(Bucket="bucket")
    yield url
    server.stop()


def use_bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the server's environment; return the URL of a folder of the bucket that only this test
    uses."""
    for name, value in (
        ("AWS_ENDPOINT_URL", server),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    return f"s3://bucket/some/{uuid.uuid4().hex}"
