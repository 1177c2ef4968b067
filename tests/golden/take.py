"""Hashes of all weights and rows of the four studies at quick scale.

    python tests/golden/take.py             # the reduced recipes, which every test run compares: a minute
    python tests/golden/take.py --complete  # the complete ones, which `make test-slow` compares

writes `reduced.json` or `complete.json` beside this file.  Do so after a change that is meant to change bits, and
say in the commit which families of metrics changed and why.
"""

import argparse
import hashlib
import json
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import safetensors.torch
import torch

import sonde
from sonde.config import RunConfig
from sonde.store.run import describe_environment
from sonde.studies import STUDIES
from sonde.studies.controls import CONTROL_STUDIES

HERE = Path(__file__).parent
FORMS = ("reduced", "complete")
REDUCED_EPOCHS = 2


def machine() -> dict[str, str]:
    """What decides the last bits of arithmetic."""
    return {
        "processor": describe_environment(1, "cpu")["machine"]["processor"],
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def recipes(form: str) -> dict[str, RunConfig]:
    """Every run of the studies, by a name that does not depend on how ids are made."""
    found = {}
    for name, study in STUDIES.items():
        if name == "rules" or name in CONTROL_STUDIES:  # rules and options that other tests hold to their equations
            continue
        seeds = study.seeds["quick"]
        for config in study.configs("quick", seeds if form == "complete" else seeds[:1]):
            if form == "reduced":
                config = replace(config, epochs=REDUCED_EPOCHS)
            model = config.model
            parts = (model.label, model.variant, f"d={model.d} L={model.L}", config.task.label)
            called = ", ".join([*filter(None, parts), config.rule.label, f"seed {config.seed}"])
            if replace(found.setdefault(called, config), scale=config.scale) != config:
                raise ValueError(f"two different runs are called {called!r}")
    return found


def hashes(config: RunConfig) -> dict[str, str]:
    """The hash of a run's weights, and of its rows by family of metrics."""
    with tempfile.TemporaryDirectory() as runs:
        sonde.train(config, runs=runs)
        rows = sonde.load(runs).rows
        weights = safetensors.torch.load_file(Path(runs) / config.id / "weights.safetensors")
    found = {"weights": _hash(_weights(weights))}
    family = pl.col("metric").str.extract(r"^([^\[/]*)")
    for (name,), part in rows.group_by(family, maintain_order=True):
        found[str(name)] = _hash(_rows(part.drop("run")))
    return dict(sorted(found.items()))


def _weights(weights: dict[str, torch.Tensor]) -> Iterable[bytes]:
    for name, value in sorted(weights.items()):
        yield f"{name} {value.dtype} {tuple(value.shape)}".encode()
        yield value.contiguous().numpy().tobytes()


def _rows(rows: pl.DataFrame) -> Iterable[bytes]:
    for row in rows.sort("metric", "layer", "epoch", "step").iter_rows(named=True):
        value = row.pop("value")
        yield json.dumps(row, sort_keys=True).encode()
        yield b"none" if value is None else struct.pack("<d", value)


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]


def read(form: str) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((HERE / f"{form}.json").read_text())
    return stored


def take(form: str) -> None:
    torch.set_num_threads(1)
    runs = {name: hashes(config) for name, config in recipes(form).items()}
    text = json.dumps({"machine": machine(), "runs": runs}, indent=1, ensure_ascii=False)
    (HERE / f"{form}.json").write_text(text + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Store the hashes of the four studies at quick scale.")
    parser.add_argument("--complete", action="store_true", help="the complete recipes, not the reduced ones")
    take("complete" if parser.parse_args().complete else "reduced")
