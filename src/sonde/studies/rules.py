"""How much of backprop's gain from depth does each rule recover, and at what cost?"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl
import torch

from sonde.analysis.conclusions import MOST_NAMES, Conclusion, n_seeds, sureness
from sonde.config import RunConfig, name_of
from sonde.config.stored import has_plugin, read
from sonde.core.errors import SondeError
from sonde.core.formatting import accuracy, listed, number, said_share
from sonde.core.generators import generator
from sonde.metrics import TRAINED
from sonde.models import ConvNet, Model, ResidualMLP
from sonde.rules import RULES, CreditBridge, FeedbackAlignment, Rule, StateBridge
from sonde.store.files import cache_key, read_cached, write_cached
from sonde.store.readings import Readings
from sonde.studies.recipes import (
    DEPTH_PROBES,
    ENOUGH_OF_MARGIN,
    QUICK_SEEDS,
    SEEDS,
    depth_matters,
    percent_of,
    share_of_rule,
)
from sonde.studies.study import EvidenceLine, Gathered, Study, StudyFinding, over_runs, own_n
from sonde.training.credit_assignment import count_operations

VARIED: dict[str, Rule] = {
    "fa": FeedbackAlignment(level="layer"),
    "state_bridge": StateBridge(hidden_layers=1, every=4),
    "credit_bridge": CreditBridge(warmup=0.0, perturb=0.1),
}
"""FA as the paper has it; State Bridge with the predictor that costs less; Credit Bridge as it does not collapse."""
COMPARED: tuple[Rule, ...] = tuple(VARIED.get(name) or rule() for name, rule in RULES.items())
ONE_SHAPE = ("credit_bridge",)  # need states of one shape, which a ConvNet's are not
WITHOUT_BACKWARD_PASS = (
    *("dfa", "drtp", "dkp", "fdfa", "forward_gradient"),
    *("predsim", "ddtp", "state_bridge", "credit_bridge", "pepita", "ff"),
)
"""No gradient, and no matrix in its place, carries credit from block to block."""
AUDITED = replace(DEPTH_PROBES, costly=("rho", "nudge"))
"""At full scale everything that an audit reads."""


def _configs(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """Every rule on residual_mlp and on conv_net, on a task where depth matters."""
    full = scale == "full"
    networks: tuple[Model, ...] = (
        ResidualMLP(d=256 if full else 64, L=4),
        ConvNet(channels=(16, 32, 64), d=128) if full else ConvNet(channels=(16, 32), d=64),
    )
    return [
        depth_matters(model, rule, scale=scale, seed=seed, probes=AUDITED if full else DEPTH_PROBES)
        for seed in seeds
        for model in networks
        for rule in COMPARED
        if not (isinstance(model, ConvNet) and name_of("rule", rule) in ONE_SHAPE)
    ]


def _findings(gathered: Gathered) -> list[StudyFinding]:
    """For each network every rule, the most accurate first; then which of them train depth."""
    evidence, readings = gathered.evidence, gathered.evidence.readings()
    counted = all("processor" in run.manifest.seconds for run in gathered.stored.runs)
    costs = {run.id: Cost(run, "processor" if counted else "train") for run in gathered.stored.runs}
    found: list[StudyFinding] = []
    for label in evidence.runs["label"].unique(maintain_order=True):
        runs = evidence.runs.filter(label=label)
        of_rule = [_finding(runs, runs.filter(rule=rule), readings, costs) for rule in runs["rule"].unique()]
        of_rule.sort(key=lambda finding: (-(finding.numbers["test_acc"] or 0), finding.numbers["rule"]))
        found += [*_depth(str(label), of_rule), *of_rule]
    return found


class Cost:
    """Of a stored run: seconds of a training step as it was trained, and the operations of one on 128 samples."""

    def __init__(self, run: Any, clock: str) -> None:
        self.run, self.clock = run, clock

    @property
    def seconds(self) -> float:
        """Seconds per step by the chosen clock; NaN without a step."""
        steps = self.run.manifest.step
        return float(self.run.manifest.seconds[self.clock]) / steps if steps else math.nan

    @cached_property
    def operations(self) -> float:
        """NaN of a plugin that was not named in this process: a store's code is never run."""
        try:
            config = read(self.run.config)
        except SondeError:
            return math.nan
        if has_plugin(self.run.config):
            return _operations(config)  # what else its file imports is in no key
        key = cache_key(self.run.recipe, libraries=("torch",))
        known = read_cached("operations", key)
        if known is None:
            known = str(_operations(config)).encode()
            write_cached("operations", key, known)
        return int(known)


def _operations(config: RunConfig) -> int:
    rng = generator(config.seed, "init")
    net = config.model.build(config.signature, rng)
    return count_operations(net, config.rule, torch.randn(128, *config.signature.shape, generator=rng))


def _measure(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    last, top = run["epochs"], run["depth"]
    cosines = [readings.value(run, "credit_cosine", epoch=last, layer=layer) for layer in range(top)]
    return {
        "test_acc": readings.value(run, "test_acc", epoch=last),
        **{f"cosine_{layer}": value for layer, value in enumerate(cosines)},
    }


def _finding(network: pl.DataFrame, runs: pl.DataFrame, readings: Readings, costs: dict[str, Cost]) -> StudyFinding:
    what = runs.row(0, named=True)
    over = over_runs(runs, readings, _measure)
    of_margin = share_of_rule(network, runs, readings)
    share, error = of_margin.value, of_margin.error
    by_layer = [over[f"cosine_{layer}"] for layer in range(what["depth"])]
    cosines = [one["mean"] for one in by_layer]
    reference = network.filter(rule="bp")["run"].to_list()
    own = runs["run"].to_list()
    arithmetic = _ratio(*([costs[run].operations for run in some[:1]] for some in (own, reference)))
    time = _ratio([costs[run].seconds for run in own], [costs[run].seconds for run in reference])
    counted = costs[own[0]].clock == "processor"
    took = "processor time" if counted else "wall time, which other programs of the machine change"
    reached = accuracy(over["test_acc"]["mean"], over["test_acc"]["std"]) + own_n(over["test_acc"], runs.height)
    recovered = said_share(share, error)
    shown = {
        "network": what["label"],
        "rule": what["rule_label"],
        "n": str(runs.height),
        TRAINED["test_acc"].label: reached,
        "of BP's margin": "–" if what["rule"] in ("bp", "frozen") else recovered,
        "credit cosine, h_0 …": " ".join(
            "–" if math.isnan(one["mean"]) else f"{one['mean']:z.2f}{own_n(one, runs.height)}".replace("-", "−")
            for one in by_layer
        ),
        "arithmetic ÷ BP": number(arithmetic),
        f"{'processor' if counted else 'wall'} time ÷ BP": number(time),
    }
    return StudyFinding(
        sentence=(
            f"{what['label']}, {what['rule_label']}, on {what['task_label']}: test accuracy {reached}, {recovered} of "
            f"BP's gain over frozen blocks. A step takes {number(arithmetic)}× BP's arithmetic and {number(time)}× its "
            f"{took}."
        ),
        shown=shown,
        numbers={
            "network": what["label"],
            "rule": what["rule"],
            "rule_label": what["rule_label"],
            "task": what["task_label"],
            "n": runs.height,
            "decided": of_margin.decided,
            "undecided": of_margin.undecided,
            "test_acc": over["test_acc"]["mean"],
            "share": None if math.isnan(share) else share,
            "share_error": None if math.isnan(error) else error,
            "cosines": [None if math.isnan(c) else c for c in cosines],
            "arithmetic": arithmetic,
            "time": time,
        },
        runs=tuple(own),
        seeds=tuple(runs["seed"]),
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    ours, theirs = ([value for value in values if not math.isnan(value)] for values in (ours, theirs))
    if not ours or not theirs or sum(theirs) == 0:
        return math.nan
    return (sum(ours) / len(ours)) / (sum(theirs) / len(theirs))


def _depth(label: str, of_rule: list[StudyFinding]) -> list[StudyFinding]:
    """Which rules train depth: those that recover most of what BP gains over frozen blocks."""
    others = [f for f in of_rule if f.numbers["rule"] not in ("bp", "frozen") and f.numbers["share"] is not None]
    if not others:
        return []

    def named(some: list[StudyFinding]) -> str:
        return listed([f"{f.numbers['rule_label']} {said_share(f.numbers['share'])}" for f in some]) or "none"

    enough = [f for f in others if f.numbers["share"] >= ENOUGH_OF_MARGIN]
    free = [f for f in enough if f.numbers["rule"] in WITHOUT_BACKWARD_PASS]
    names = ", ".join(f.numbers["rule_label"] for f in free) or "none"
    sentence = (
        f"{label} on {others[0].numbers['task']}: {len(enough)} of {len(others)} rules recover at least "
        f"{percent_of(ENOUGH_OF_MARGIN)} of BP's gain over frozen blocks. They are: {named(enough)}. "
        f"Without a gradient or feedback matrix from block to block: {names}.{_undecided(others)}"
    )
    runs = tuple(run for finding in of_rule for run in finding.runs)
    numbers = {"enough": [f.numbers["rule"] for f in enough], "free": [f.numbers["rule"] for f in free]}
    return [StudyFinding(sentence=sentence, shown={}, numbers=numbers, runs=runs, seeds=of_rule[0].seeds)]


def _undecided(rules: list[StudyFinding]) -> str:
    """The rules whose interval includes the limit."""
    open_ = [f.numbers["rule_label"] for f in rules if f.numbers["undecided"]]
    limit = percent_of(ENOUGH_OF_MARGIN)
    said = f" The 95 % interval of the share includes {limit} for {listed(open_)}, so more seeds may decide."
    return said if open_ else ""


def _conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """Which rules train depth on each network; a row for each rule, the largest share first."""
    own = [finding for finding in findings if finding.shown]
    rules = [one for one in own if one.numbers["share"] is not None and one.numbers["rule"] not in ("bp", "frozen")]
    networks = list(dict.fromkeys(one.numbers["network"] for one in own))
    task = own[0].numbers["task"]
    if not rules:
        shown = {"network": "left", "rule": "left", TRAINED["test_acc"].label: "right"}
        return Conclusion(
            answer=f"On {task}, no rule is compared: that needs its runs beside runs of BP and of frozen blocks.",
            columns=shown,
            rows=[[one.shown[heading] for heading in shown] for one in own],
            sure=f"{n_seeds([one.numbers['n'] for one in own])}.",
        )
    answers = []
    for name in networks:
        of = [one for one in rules if one.numbers["network"] == name]
        enough = [one.numbers["rule_label"] for one in of if one.numbers["share"] >= ENOUGH_OF_MARGIN]
        answers.append(f"{len(enough)} of {len(of)} rules with {name} ({listed(enough, MOST_NAMES) or 'none'})")
    by_rule: dict[str, dict[str, StudyFinding]] = {}
    for one in sorted(rules, key=lambda one: -one.numbers["share"]):
        by_rule.setdefault(one.numbers["rule_label"], {})[one.numbers["network"]] = one
    cost, limit = "arithmetic ÷ BP", percent_of(ENOUGH_OF_MARGIN)
    rows = [
        [
            label,
            *(of[name].cell("of BP's margin") if name in of else "–" for name in networks),
            *(of[name].cell(cost) if name in of else "–" for name in networks[:1]),
        ]
        for label, of in by_rule.items()
    ]
    decided = [f"{one.numbers['rule_label']}" for one in rules if one.numbers["decided"]]
    undecided = [f"{one.numbers['rule_label']}" for one in rules if not one.numbers["decided"]]
    return Conclusion(
        answer=f"On {task}, at least {limit} of BP's gain over frozen blocks: {'; '.join(answers)}.",
        columns={"rule": "left", **{f"gain, {name}": "right" for name in networks}, cost: "right"},
        rows=rows,
        sure=sureness([one.numbers["n"] for one in rules], decided, undecided),
    )


RULES_STUDY = Study(
    question="how much of backprop's gain from depth does each rule recover, and at what cost?",
    seeds={"quick": QUICK_SEEDS, "full": SEEDS},
    configs=_configs,
    findings=_findings,
    conclusion=_conclusion,
)
