"""Why do deep plain networks fail to learn the identity, and what does "+x" change?"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from sonde.analysis import theory
from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds, sureness
from sonde.analysis.evidence import Evidence
from sonde.config import Optimiser, Probing, RunConfig
from sonde.core import formatting
from sonde.core.formatting import listed, number, percent
from sonde.metrics import label_of
from sonde.models import PlainMLP, ResMLP
from sonde.rules import Backprop
from sonde.store.readings import Readings
from sonde.studies.study import EvidenceLine, Gathered, Study, StudyFinding, means, over_runs, own_n
from sonde.tasks import Identity

PROBES = (
    "loss",
    "hidden_norm",
    "growth",
    "grad_norm",
    "activation_mean",
    "activation_std",
    "preact_grad_norm",
    "trace",
)


OUTPUT_PROBES = Probing(
    names=tuple(name for name in PROBES if name != "trace"), schedule="every_k", k=10, costly=(), size=64
)
DEPTHS = (1, 2, 5, 10, 20)
"""Of the networks with a linear output: those whose loss has no floor, so that depth alone is compared."""


def _config(model: PlainMLP | ResMLP, seed: int, probes: Probing) -> RunConfig:
    return RunConfig(
        model=model,
        rule=Backprop(),
        task=Identity(),
        optimiser=Optimiser(name="adam", lr=1e-3, weight_decay=0.0, schedule="constant"),
        probes=probes,
        batch_size=64,
        epochs=10,
        seed=seed,
        log="step",
    )


def configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """{plain, residual} × {raw, scaled} × seeds; quick and full are the same recipe."""
    probes = Probing(names=PROBES, costly=(), size=64)
    return [
        _config(model(weight_scale=weight_scale), seed, probes)
        for seed in seeds
        for weight_scale in (1.0, "1/sqrt(L)")
        for model in (PlainMLP, ResMLP)
    ]


def with_linear_output(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """The same with a linear last layer, at every depth; a single layer is the same network raw and scaled."""
    return [
        _config(model(L=depth, weight_scale=weight_scale, output="linear"), seed, OUTPUT_PROBES)
        for seed in seeds
        for depth in DEPTHS
        for weight_scale in ((1.0, "1/sqrt(L)") if depth > 1 else (1.0,))
        for model in (PlainMLP, ResMLP)
    ]


def findings(gathered: Gathered) -> list[StudyFinding]:
    """First what depth does to networks that can give back their input; then the networks of L layers, one by one.

    Among those the variant in which "+x" is enough comes first.
    """
    over_depth, deepest = _with_linear_output(gathered.evidence.beside if gathered.beside.runs else None)
    evidence = gathered.evidence
    several = evidence.runs["rule"].n_unique() > 1
    readings = evidence.readings()
    own = [_finding(runs, readings, several) for runs in _kinds(evidence.runs)]
    return [*over_depth, *deepest, *own]


def _kinds(runs: pl.DataFrame) -> list[pl.DataFrame]:
    """Runs that differ in nothing but the seed."""
    kinds = (
        runs.group_by("variant", "model", "rule")
        .agg()
        .sort(pl.col("variant") != "scaled", "variant", "model", pl.col("rule") != "bp", "rule")
    )
    return [
        runs.filter(*(pl.col(key).eq_missing(value) for key, value in kind.items()))
        for kind in kinds.iter_rows(named=True)
    ]


def _with_linear_output(beside: Evidence | None) -> tuple[list[StudyFinding], list[StudyFinding]]:
    """A finding over all depths for each network, and one for each at the greatest depth."""
    if beside is None:
        return [], []
    runs, readings = beside.runs, beside.readings()
    deepest = _kinds(runs.filter(pl.col("depth") == pl.col("depth").max()))
    over_depth = [_over_depth(of_kind, runs, readings) for of_kind in deepest]
    return over_depth, [_finding(of_kind, readings, False) for of_kind in deepest]


def _over_depth(deepest: pl.DataFrame, runs: pl.DataFrame, readings: Readings) -> StudyFinding:
    """How much of its loss a network keeps at every depth; a single layer belongs to both variants."""
    what = deepest.row(0, named=True)
    one_layer = (pl.col("depth") == 1) | (pl.col("variant") == what["variant"])
    own = runs.filter(pl.col("model") == what["model"], one_layer).sort("depth", "seed")
    found = {
        depth: _finding(of_depth, readings, False) for (depth,), of_depth in own.group_by("depth", maintain_order=True)
    }
    trivial = theory.INPUT_SECOND_MOMENT
    losses = {depth: one.numbers["final_loss"] / trivial for depth, one in found.items()}
    status: dict[str, list[int]] = {}
    for depth, one in found.items():
        status.setdefault(one.numbers["verdict"], []).append(depth)
    said = "; ".join(f"{words} at L = {', '.join(map(str, depths))}" for words, depths in status.items())
    shown = ", ".join(f"{number(loss)} (L = {depth})" for depth, loss in losses.items())
    n = sorted({one.numbers["n"] for one in found.values()})
    return StudyFinding(
        sentence=(
            f"{formatting.network(what)}, on {what['task_label']}: {said}. "
            f"Final loss ÷ that of predicting zero: {shown}."
        ),
        shown={},
        numbers={
            "network": what["label"],
            "variant": what["variant"],
            "n": n[0],
            "losses_over_trivial": losses,
            "status": {depth: one.numbers["verdict"] for depth, one in found.items()},
        },
        runs=tuple(own["run"]),
        seeds=tuple(own["seed"].unique().sort()),
    )


def _finding(runs: pl.DataFrame, readings: Readings, several_rules: bool) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    floor = theory.lowest_loss(what["model"], what["task"], what["output"])
    numbers: dict[str, Any] = {
        "network": what["label"],
        "task": what["task_label"],
        "variant": what["variant"],
        "depth": what["depth"],
        "n": runs.height,
        **means(over, runs.height),
        "final_loss_std": over["final_loss"]["std"],
        "lowest_loss": floor,
        "growth_per_layer_predicted": _predicted(what),
    }
    if several_rules:
        numbers["rule"] = what["rule_label"]
    trivial = theory.INPUT_SECOND_MOMENT if what["task"] == "identity" else None
    loss = (numbers["loss_reduction_percent"], numbers["final_loss"], trivial, floor)
    numbers["verdict"] = formatting.loss_status(*loss)
    n = {name: own_n(summary, runs.height) for name, summary in over.items()}
    error = numbers["loss_reduction_error"] / math.sqrt(max(1, over["loss_reduction_error"]["n"]))
    learned = formatting.loss_verdict(*loss, error) + n["loss_reduction_percent"]
    if trivial is not None and numbers["verdict"] == "learned little" and numbers["test_loss"] >= trivial:
        learned += f" (test samples: ×{number(numbers['test_loss'] / trivial)}, so it memorised the training samples)"
    gradient = formatting.gradient_verdict(numbers["gradient_first_over_last"]) + n["gradient_first_over_last"]
    name = ", ".join(part for part in (formatting.network(what), numbers.get("rule")) if part)
    return StudyFinding(
        sentence=f"{name}, L = {what['depth']}, on {what['task_label']}: {learned}; {gradient}.",
        shown=_cells(numbers, n),
        numbers=numbers,
        runs=tuple(runs["run"]),
        seeds=tuple(runs["seed"]),
    )


def _predicted(what: dict[str, Any]) -> float:
    """Growth per layer under random weights, of the two networks and the input for which it is known."""
    if what["model"] not in ("plain_mlp", "res_mlp") or what["task"] != "identity":
        return math.nan
    linear = what["output"] == "linear"
    moments = theory.moments(what["model"] == "res_mlp", what["alpha"], what["depth"], linear_output=linear)
    return float((moments[-1][0] / moments[0][0]) ** (1 / (2 * what["depth"])))


def _measure(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    """The numbers of one run; NaN where they are undefined."""
    value = partial(readings.value, run)
    depth, last = run["depth"], run["epochs"]
    floor = theory.lowest_loss(run["model"], run["task"], run["output"])
    ending = [value("batch_loss", step=step) for step in formatting.last_steps(run["steps"])]
    change = formatting.loss_change(value("batch_loss", step=1), ending, floor)
    gradients = [value("preact_grad_norm", epoch=last, layer=layer) for layer in range(1, depth + 1)]
    known = not any(map(math.isnan, gradients))  # least and most are of every layer, or undefined

    def growth(epoch: int) -> float:
        """Geometric mean over the layers of ‖h_{l+1}‖/‖h_l‖."""
        bottom, top = (value("hidden_norm", epoch=epoch, layer=layer) for layer in (0, depth))
        return (top / bottom) ** (1 / depth) if bottom > 0 else math.nan

    return {
        "initial_loss": change.initial,
        "final_loss": change.final,
        "final_loss_error": change.final_error,
        "test_loss": value("test_loss", epoch=last),
        "loss_reduction_percent": change.fell,
        "loss_reduction_error": change.fell_error,
        "gradient_min": min(gradients) if known else math.nan,
        "gradient_max": max(gradients) if known else math.nan,
        "gradient_layer_1": gradients[0],
        "gradient_first_over_last": gradients[0] / gradients[-1] if gradients[-1] else math.nan,
        "growth_per_layer_at_init": growth(0),
        "growth_per_layer_trained": growth(last),
    }


def _cells(numbers: dict[str, Any], n: dict[str, str]) -> dict[str, str]:
    """`n` is what a cell says of its own n, where that is not the line's."""
    gradients = f"{number(numbers['gradient_min'])} … {number(numbers['gradient_max'])}"
    error = numbers["final_loss_error"] if numbers["final_loss_std"] is None else numbers["final_loss_std"]
    spread = "" if math.isnan(error) else f" ± {number(error)}"
    lowest = numbers["lowest_loss"]
    return {
        "network": numbers["network"],
        "weights": formatting.weights(numbers["variant"]).removeprefix("weights ") if numbers["variant"] else "–",
        **({"rule": numbers["rule"]} if "rule" in numbers else {}),
        "n": str(numbers["n"]),
        "first loss": number(numbers["initial_loss"]) + n["initial_loss"],
        "final loss": number(numbers["final_loss"], 3) + spread + n["final_loss"],
        label_of("test_loss"): number(numbers["test_loss"], 3) + n["test_loss"],
        "lowest": "unknown" if lowest is None else number(lowest, 3),
        "above lowest, fell by": percent(numbers["loss_reduction_percent"]) + n["loss_reduction_percent"],
        "gradient, least … most": gradients + n["gradient_min"],
        "growth per layer: init": number(numbers["growth_per_layer_at_init"], 3) + n["growth_per_layer_at_init"],
        "predicted": number(numbers["growth_per_layer_predicted"], 3),
        "trained": number(numbers["growth_per_layer_trained"], 3) + n["growth_per_layer_trained"],
    }


def _conclusion(found: Sequence[StudyFinding]) -> Conclusion:
    """Which networks learned: those of every depth where they were trained, else those of the study's own depth."""
    own = [finding for finding in found if finding.shown]
    depths = {_key(one): one.numbers["status"] for one in found if "losses_over_trivial" in one.numbers}
    tabled = [one for one in own if _key(one) in depths] or own
    tabled.sort(key=lambda one: (one.numbers["verdict"] != "learned", one.numbers["final_loss"]))
    deepest, n = max(one.numbers["depth"] for one in tabled), len(tabled)
    learned = [_named(one) for one in tabled if one.numbers["verdict"] == "learned"]
    said = f"{'only ' * (len(learned) == 1 < n)}{listed(learned, MOST_NAMES)} learned"
    if len(learned) in (0, n):
        said = f"{'all' if learned else 'none of'} {n} networks learned"
    columns = {"network": "left", "weights": "left"} | ({"learned at L =": "left"} if depths else {})
    counts = [len(one.seeds) for one in tabled]
    linear = " The last layer is linear." if all(one.numbers["network"].endswith(_LINEAR) for one in tabled) else ""
    return Conclusion(
        answer=f"On {tabled[0].numbers['task']} with L = {deepest}, {said}.",
        columns=columns | {"loss*": "right", "gradient†": "left"},
        rows=[_row(one, depths) for one in tabled],
        note=f"* ÷ the loss of predicting zero. † at layer 1 ÷ at the last. Both at L = {deepest}.{linear}",
        sure=sureness(counts, [], []) if max(counts) < 2 else f"{n_seeds(counts)} for each network.",
    )


_LINEAR = ", linear output"


def _row(one: StudyFinding, depths: Mapping[tuple[str, str], Mapping[int, str]]) -> list[str]:
    at = ", ".join(str(depth) for depth, words in depths.get(_key(one), {}).items() if words == "learned")
    ratio = one.numbers["gradient_first_over_last"]
    status = formatting.gradient_status(ratio).removeprefix("gradient ")
    return [
        one.numbers["network"].removesuffix(_LINEAR),
        one.cell("weights"),
        *([at or "none"] if depths else []),
        number(one.numbers["final_loss"] / theory.INPUT_SECOND_MOMENT),
        status if math.isnan(ratio) else f"{number(ratio)} ({status})",
    ]


def _key(finding: StudyFinding) -> tuple[str, str]:
    return finding.numbers["network"], finding.numbers["variant"]


def _named(finding: StudyFinding) -> str:
    network, variant = _key(finding)
    network = network.removesuffix(_LINEAR)
    with_ = f"{network} with {formatting.weights(variant)}" if variant else network
    return ", ".join(part for part in (with_, finding.numbers.get("rule")) if part)


RESIDUAL_STUDY = Study(
    question='why do deep plain networks fail to learn the identity, and what does "+x" change?',
    seeds={"quick": (42,), "full": (42,)},
    configs=configs,
    findings=findings,
    conclusion=_conclusion,
    beside=with_linear_output,
)
