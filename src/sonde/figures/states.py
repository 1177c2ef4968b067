"""The hidden state of one input vector at every layer: the summary behind figure 9."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from sonde.figures.marks import Floats
from sonde.figures.residual import MODELS, Pair, moment
from sonde.runs.evidence import Evidence, NoData

STATE = r"^state\[(\d+)\]$"


@dataclass(frozen=True)
class States:
    """The state at layers 0 … L in each network, as layer × unit, from one run of each."""

    pair: Pair  # the two runs shown
    layers: dict[str, Floats]  # NaN where undefined
    when: str
    seed: int | None

    def norms(self, model: str) -> Floats:
        """L2 norm over all units, per layer."""
        return np.asarray(np.linalg.norm(self.layers[model], axis=1))

    def units(self, first: int) -> dict[str, Floats]:
        """The first few units only."""
        return {model: matrix[:, :first] for model, matrix in self.layers.items()}

    @property
    def counts(self) -> pl.DataFrame:
        return pl.DataFrame({"model": MODELS, "n": [1] * len(MODELS)})

    @property
    def same_input(self) -> bool:
        plain, residual = (self.layers[model][0] for model in MODELS)
        return plain.shape == residual.shape and np.allclose(plain, residual, equal_nan=True)


def states_of(pair: Pair) -> States:
    """The states of the first seed that has them in both networks, at the last epoch with any."""
    rows = pair.evidence.rows.filter(pl.col("metric").str.contains(STATE))
    if rows.is_empty():
        raise NoData(f"no hidden states of a single input (state[0], state[1], …) in {pair.evidence.source}")
    rows = rows.filter(pl.col("epoch") == pl.col("epoch").max())
    if not rows["defined"].any():
        raise NoData(f"every hidden state in {pair.evidence.source} is undefined")
    runs = pair.runs.join(rows.select("run").unique(), on="run", how="semi")
    seeds = [set(runs.filter(model=model)["seed"]) for model in MODELS]
    shared = sorted(seeds[0] & seeds[1], key=lambda seed: (seed is None, seed))
    if not shared:
        raise NoData(f"no seed with the hidden states of both networks in {pair.evidence.source}")
    chosen = runs.filter(pl.col("seed").eq_missing(pl.lit(shared[0], dtype=pl.Int64)))
    chosen = chosen.sort("model", "run").unique("model", keep="first", maintain_order=True)
    layers = {model: _matrix(pair, rows, chosen.filter(model=model)["run"][0]) for model in MODELS}
    if min(matrix.shape[1] for matrix in layers.values()) < 2:
        raise NoData(f"hidden states of fewer than two units in {pair.evidence.source}")
    shown = replace(pair, evidence=Evidence(rows, chosen, pair.evidence.source))
    return States(shown, layers, moment(rows), shared[0])


def _matrix(pair: Pair, rows: pl.DataFrame, run: str) -> Floats:
    known = rows.filter(run=run).with_columns(unit=pl.col("metric").str.extract(STATE).cast(pl.Int64))
    matrix = np.full((pair.depth + 1, max(known["unit"], default=-1) + 1), np.nan)
    known = known.filter("defined")
    matrix[known["layer"].to_numpy(), known["unit"].to_numpy()] = known["value"].to_numpy()
    return matrix
