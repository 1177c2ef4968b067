"""What a process that will be killed runs."""

from typing import Any

from sonde.config import parse
from sonde.training.train import train


def train_tree(tree: dict[str, Any], runs: str, ready: Any) -> None:
    ready.set()
    train(parse(tree), runs=runs)
