"""The sessions of a run in words: from which epoch it went on, and where."""

from collections.abc import Mapping
from typing import Any


def place_of(session: Mapping[str, Any]) -> str | None:
    """The machine, with the node of a cluster as the engine named it; None where nothing was recorded."""
    host = session.get("environment", {}).get("machine", {}).get("host")
    node = session.get("node")
    return ", ".join(part for part in (host, node and f"node {node}") if part) or None


def start(session: Mapping[str, Any]) -> str:
    """How a session began; of one that went on also where."""
    epoch = session.get("from_epoch")
    if epoch is None:
        return "from the start"
    where = place_of(session)
    return f"resumed after epoch {epoch}" + (f" on {where}" if where else "")
