"""Write docs/rules.md: from the runs in docs/rules-runs and docs/findings/runs, and from benchmarks/rules/results.json.

    python docs/write_rules.py

What was trained or timed is computed here; `sonde bench rules_256 --save benchmarks/rules` times the steps anew.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sonde.analysis.readings import Readings
from sonde.analysis.recovery import Accuracy, error_by_test_set, share_of_margin
from sonde.config import RunConfig, name_of
from sonde.core.formatting import accuracy, said_share
from sonde.metrics.rows import Reading
from sonde.models import ConvNet, Model, ResidualMLP, ResNet, VitMini
from sonde.rules import RULES, Backprop, Frozen, Rule, StateBridge
from sonde.store.load import load
from sonde.store.stored import Runs
from sonde.studies.depth import PROBES
from sonde.studies.recipes import depth_matters
from sonde.studies.rules import AUDITED, COMPARED, VARIED
from sonde.tasks import RandomHierarchy
from sonde.training.operations import operations

HERE = Path(__file__).parent
TIMES = HERE.parent / "benchmarks" / "rules" / "results.json"
STORES = (HERE / "rules-runs", HERE / "findings" / "runs")
SEED = 42
SMALL, LARGE = VARIED["state_bridge"], StateBridge()
NETWORKS: tuple[Model, ...] = (
    ConvNet(channels=(16, 32), d=64),
    ResNet(d=8),
    VitMini(d=64, patch=2),
)
SMALL_MLP = ResidualMLP(d=64, L=4)
AMONG = ", residual_mlp d=256 L=4, among rules"
"""How the benchmark's rows end that compare rules."""


class Trained:
    """What was measured at the end of stored runs, found by the configuration that they must have."""

    def __init__(self, stores: Sequence[Runs]) -> None:
        self.ended = {run.id for runs in stores for run in runs.runs if run.manifest.state == "complete"}
        self.readings = [Readings(runs.rows) for runs in stores]

    def value(self, config: RunConfig, metric: str, **where: int) -> float:
        if config.id not in self.ended:
            raise LookupError(f"{config.id} is in no store: train it, and hand it round")
        found = self.known(config, metric, **where)
        assert found is not None, f"{metric} of {config.id} is not defined"
        return found

    def known(self, config: RunConfig, metric: str, **where: int) -> float | None:
        """The same, or None where it was not measured or is undefined."""
        found = self.readings_of(config, metric, **where)
        return found[0].value if found and found[0].reason is None else None

    def readings_of(self, config: RunConfig, metric: str, **where: int) -> list[Reading]:
        return [some[config.id] for r in self.readings if config.id in (some := r.at(metric, **where))]

    def reached(self, config: RunConfig) -> float:
        return self.value(config, "test_acc", epoch=config.epochs)

    def share(self, configs: Sequence[RunConfig]) -> str:
        """Of BP's margin over frozen blocks, in per cent, with the test set's error: of rule, BP and frozen blocks."""
        reached, bp, frozen = map(self.reached, configs)
        found = share_of_margin({SEED: reached - frozen}, {SEED: bp - frozen})
        if not found:
            return "undefined"
        read = (self.readings_of(config, "test_acc", epoch=config.epochs)[0] for config in configs)
        error = error_by_test_set(*(Accuracy(value=one.value, samples=one.samples) for one in read))
        return said_share(found[0], error)

    def cosines(self, config: RunConfig, layers: int, of: str = "") -> str:
        values = (self.value(config, f"credit_cosine{of}", epoch=config.epochs, layer=layer) for layer in range(layers))
        return " ".join(f"{value:z.2f}".replace("-", "−") for value in values)


def quick(model: Model, rule: Rule) -> RunConfig:
    """As `sonde run rules` trains it."""
    return depth_matters(model, rule, scale="quick", seed=SEED, probes=PROBES)


def on_hierarchy(rule: Rule) -> RunConfig:
    return replace(quick(SMALL_MLP, rule), task=RandomHierarchy())


def on_images(rule: Rule) -> RunConfig:
    return depth_matters(ResidualMLP(d=256, L=4), rule, scale="full", seed=SEED, probes=AUDITED)


def bridges(trained: Trained) -> str:
    """State Bridge on networks whose states are maps or tokens."""
    rows = []
    for model in NETWORKS:
        reached = [trained.reached(quick(model, rule)) for rule in (Backprop(), SMALL, Frozen())]
        config = quick(model, SMALL)
        layers = depth_of(config)
        rows.append(
            [
                f"`{name_of('model', model)}`",
                *(accuracy(one) for one in reached),
                trained.cosines(config, layers),
                trained.cosines(config, layers, "/null"),
            ]
        )
    return table(["network", "BP", "State Bridge", "frozen", "cosine at h_0 …", "chance"], rows)


def recovered_by_bridge(trained: Trained) -> str:
    """Its share of BP's margin over frozen blocks on each of these networks."""
    said = []
    for model in NETWORKS:
        recovered = trained.share([quick(model, rule) for rule in (SMALL, Backprop(), Frozen())])
        said.append(f"{recovered} on `{name_of('model', model)}`")
    return ", ".join(said)


def predictors(trained: Trained) -> str:
    """The default predictor against the one that costs less."""
    bp, frozen = (trained.reached(on_images(rule)) for rule in (Backprop(), Frozen()))
    rows = []
    for called, rule in (("`hidden_layers=1, every=4`", SMALL), ("by default: 2 and 1", LARGE)):
        config = on_images(rule)
        reached = trained.reached(config)
        share = trained.share([on_images(one) for one in (rule, Backprop(), Frozen())])
        rows.append([called, accuracy(reached), share, trained.cosines(config, 4)])
    rows += [["BP", accuracy(bp), "", ""], ["frozen", accuracy(frozen), "", ""]]
    return table(["predictor", "test accuracy", "of BP's margin", "cosine at h_0 … h_3"], rows)


def parity(trained: Trained) -> str:
    """Every rule on parity, the most accurate first, with its credit and its backward matrices."""
    configs = sorted((quick(SMALL_MLP, rule) for rule in COMPARED), key=lambda one: -trained.reached(one))
    headings = ["rule", "test accuracy", "cosine of credit and gradient at h_0 … h_3 (chance)", "cos(V, W)"]
    return table(
        headings,
        [
            [
                called(config.rule),
                accuracy(trained.reached(config)),
                credit(trained, config),
                alignment(trained, config),
            ]
            for config in configs
        ],
    )


def credit(trained: Trained, config: RunConfig) -> str:
    """The cosines of a rule that assigns credit to blocks, and by chance."""
    if isinstance(config.rule, Frozen):
        return ""
    layers = depth_of(config)
    return f"{trained.cosines(config, layers)} ({trained.cosines(config, layers, '/null')})"


def alignment(trained: Trained, config: RunConfig) -> str:
    """The least and the largest cosine of a backward matrix and its weight, where a rule has them."""
    names = [name for name, _ in config.model.build(config.signature, torch.Generator()).named_parameters()]
    known = [trained.known(config, f"weight_alignment[{name}]", epoch=config.epochs) for name in names]
    values = [value for value in known if value is not None]
    return f"{min(values):z.2f} to {max(values):z.2f}".replace("-", "−") if values else ""


def called(rule: Rule) -> str:
    """A rule by its name, and what was chosen for it beside that."""
    name = name_of("rule", rule)
    plain = RULES[name]()
    chosen = [
        f"{field.name}={getattr(rule, field.name)}"
        for field in fields(rule)
        if getattr(rule, field.name) != getattr(plain, field.name)
    ]
    return f"`{name}`" + (f" with `{', '.join(chosen)}`" if chosen else "")


def hierarchy(trained: Trained) -> str:
    """Every rule on the random hierarchy, the most accurate first."""
    configs = sorted((on_hierarchy(rule) for rule in COMPARED), key=lambda config: -trained.reached(config))
    return table(
        ["rule", "test accuracy"],
        [[called(config.rule), accuracy(trained.reached(config))] for config in configs],
    )


def margin(trained: Trained) -> str:
    bp, frozen = (trained.reached(on_hierarchy(rule)) for rule in (Backprop(), Frozen()))
    return f"BP reaches {accuracy(bp)}, frozen blocks {accuracy(frozen)}, {100 * (bp - frozen):.0f} points less"


def inputs(task: RandomHierarchy) -> dict[str, str]:
    """How many different samples there are, and of how many test samples one is expected in training, too."""
    different = task.classes * task.m ** ((task.s**task.L - 1) // (task.s - 1))
    seen = 1 - (1 - 1 / different) ** task.samples
    return {"different": f"{different:,}", "one_in": f"{1 / seen:.0f}"}


def steps(times: dict[str, Any]) -> str:
    """A step of every rule relative to the bare loop's."""
    rows = []
    for row in times["rows"]:
        if row["bar"] is None or not row["name"].endswith(AMONG):
            continue
        rule = row["name"].removesuffix(AMONG)
        above = "\\*" if row["ratio"] > row["bar"] else ""
        spread = f"{row['p10']:.2f}–{row['p90']:.2f}"
        ms = f"{1e3 * row['ours']:.1f} ms"
        rows.append([f"`{rule}`", ms, f"{row['ratio']:.2f}{above}", spread, f"{row['bar']:.2f}"])
    return table(["rule", "a step", "÷ a bare loop's", "middle 80 %", "at most"], rows)


def arithmetic(rule: Rule) -> str:
    """Of a step, relative to BP's."""
    config = on_images(rule)
    net = config.model.build(config.signature, torch.Generator().manual_seed(0))
    x = torch.zeros(config.batch_size, *config.signature.shape)
    return f"{operations(net, rule, x) / operations(net, Backprop(), x):.2f}"


def depth_of(config: RunConfig) -> int:
    """How many states lie below the last."""
    net = config.model.build(config.signature, torch.Generator().manual_seed(0))
    return len(net.blocks)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (headings, ["---"] * len(headings), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(stores: Sequence[Runs], times: dict[str, Any]) -> str:
    templates = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True)
    trained = Trained(stores)
    text: str = templates.get_template("rules.md.jinja").render(
        steps=steps(times),
        machine=times["machine"],
        bridges=bridges(trained),
        recovered_by_bridge=recovered_by_bridge(trained),
        predictors=predictors(trained),
        parity=parity(trained),
        hierarchy=hierarchy(trained),
        margin=margin(trained),
        lost=f"{100 * (trained.reached(on_images(LARGE)) - trained.reached(on_images(SMALL))):.1f}",
        cheaper=arithmetic(SMALL),
        dearer=arithmetic(LARGE),
        seed=SEED,
        **inputs(RandomHierarchy()),
    )
    return text


def write() -> None:
    stores = [load(store) for store in STORES]
    (HERE / "rules.md").write_text(page(stores, json.loads(TIMES.read_text())))


if __name__ == "__main__":
    sys.exit(write())
