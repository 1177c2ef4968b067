"""An S3 server, and a Ray cluster of three nodes whose way to it spoils a tenth of the requests."""

import os
from collections.abc import Iterator

import pytest

from cluster.faulty_proxy import FaultyProxy
from cluster.s3_server import environment, new_bucket, serving, use
from cluster.three_nodes import ThreeNodes


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use(server, monkeypatch)
    return new_bucket(server)


@pytest.fixture(scope="session")
def unreliable(server: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(server, part=0.1, seed=1) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def three_nodes(unreliable: FaultyProxy) -> Iterator[ThreeNodes]:
    nodes = ThreeNodes(client_port=22_000 + os.getpid() % 1000, environment=environment(unreliable.url))
    try:
        yield nodes
    finally:
        nodes.shutdown()


@pytest.fixture
def cluster(three_nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch) -> ThreeNodes:
    """All three alive, and the one that `--engine ray` finds."""
    three_nodes.fill_up()
    monkeypatch.setenv("RAY_ADDRESS", three_nodes.address)
    return three_nodes
