"""The words around a figure: n, seeds, recipe and caption, all read from the runs it was drawn from."""

import polars as pl

from sonde.figures.residual import MODELS, Pair
from sonde.verdicts import number


def n_text(pair: Pair, summary: pl.DataFrame) -> str:
    """How many seeds the values stand on: "n = 3 seeds", with the range where it varies."""
    noun = "run" if pair.runs["seed"].null_count() else "seed"
    spans = {}
    for model in MODELS:
        counts = sorted(set(summary.filter(pl.col("model") == model, pl.col("n") > 0)["n"])) or [0]
        spans[model] = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    if len(set(spans.values())) == 1:
        n = spans[MODELS[0]]
        return f"n = {n} {noun if n == '1' else noun + 's'}"
    return f"n = {' and '.join(f'{spans[model]} ({pair.labels[model]})' for model in MODELS)} {noun}s"


def seeds_text(pair: Pair) -> str:
    """The seeds of both networks, or that a file does not record them."""
    seeds = {model: pair.runs.filter(model=model)["seed"].to_list() for model in MODELS}
    texts = {
        model: "seed not recorded" if None in found else ", ".join(map(str, found))
        for model, found in seeds.items()
    }
    if len(set(texts.values())) == 1:
        return texts[MODELS[0]]
    return "; ".join(f"{pair.labels[model]} {texts[model]}" for model in MODELS)


def _count(noun: str, items: list[int]) -> str:
    return f"{noun if len(items) == 1 else noun + 's'} {', '.join(map(str, items))}"


def missing_seeds(pair: Pair, rows: pl.DataFrame) -> list[str]:
    """Which seeds have no defined value here, one sentence per network."""
    known = set(pair.runs["seed"].drop_nulls())
    notes = []
    for model in MODELS:
        found = set(rows.filter(pl.col("model") == model, pl.col("defined"))["seed"].drop_nulls())
        if known - found and (found or pair.runs.filter(model=model)["seed"].null_count() == 0):
            notes.append(
                f"{pair.labels[model]}: no defined values from {_count('seed', sorted(known - found))}."
            )
    return notes


def weights_text(pair: Pair) -> str:
    """The variant and its weight scale: "scaled weights (α = 0.224)"."""
    variant = pair.runs["variant"][0]
    name = "weights" if variant is None else f"{variant} weights"
    return name if pair.alpha is None else f"{name} (α = {number(pair.alpha, 3)})"


def recipe_text(pair: Pair) -> str:
    """Depth, width and training recipe, from the columns of the runs."""
    said = {field: pair.runs[field][0] for field in ("width", "steps", "batch", "lr", "samples")}
    shown = {field: "unrecorded" if value is None else f"{value:,.6g}" for field, value in said.items()}
    return (
        f"{pair.depth} layers of width {shown['width']}, {weights_text(pair)}, {shown['steps']} steps of "
        f"batch {shown['batch']}, learning rate {shown['lr']}, {shown['samples']} training samples"
    )


def caption(pair: Pair, summary: pl.DataFrame, shown: str, look: str, notes: list[str]) -> str:
    """One paragraph: what is shown, from which runs and how estimated, and what to look at."""
    n = n_text(pair, summary)
    spread = (
        "Line or bar: arithmetic mean over seeds; band or whisker: sample standard deviation (ddof 1)"
        if (summary["n"] > 1).any()
        else "Single values, no spread"
    )
    parts = [
        shown,
        f"{recipe_text(pair)}.",
        f"{spread}; {n} ({seeds_text(pair)}).",
        look,
        *dict.fromkeys(notes),
    ]
    ids = pair.runs["run"].to_list()
    if len(ids) <= 8:
        parts.append(f"runs: {', '.join(ids)}")
    return (
        " ".join(
            part[0].upper() + part[1:] if not part.startswith("runs:") else part for part in parts if part
        )
        + "\n"
    )
