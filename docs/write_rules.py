"""Write docs/rules.md from the rules' classes, stored runs and measured times.

    python docs/write_rules.py

The table, the differences from the papers and the sections come from RULES, so a new rule needs no edit here.  Runs are
in docs/rules-runs and docs/findings/runs, times in benchmarks/rules/results.json, which
`sonde bench rules_256 --save benchmarks/rules` measures again.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sonde.analysis.recovery import Accuracy, error_by_test_set, share_of_margin
from sonde.config import RunConfig, name_of
from sonde.core.errors import SondeError
from sonde.core.formatting import accuracy, said_share
from sonde.core.run_ids import RULE_DEFAULTS
from sonde.metrics.rows import Reading
from sonde.models import ConvNet, Model, ResidualMLP, ResNet, VitMini
from sonde.network import Signature
from sonde.rules import RULES, Backprop, CreditBridge, FeedbackAlignment, Frozen, Rule, StateBridge
from sonde.store.load import load
from sonde.store.readings import Readings
from sonde.store.run import Runs
from sonde.studies.recipes import DEPTH_PROBES, depth_matters
from sonde.studies.rules import AUDITED, COMPARED, VARIED
from sonde.tasks import Parity, RandomHierarchy
from sonde.training.credit_assignment import CreditAssignment, count_operations
from sonde.training.train import stackable

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


def rules() -> str:
    """What each rule needs, what its step costs, and where it can be used."""
    headings = ["rule", "needs", "arithmetic of a step ÷ BP", "states that change shape", "stacked"]
    rows = []
    for rule in every_rule():
        config = RunConfig(model=SMALL_MLP, rule=rule, task=Parity(), epochs=1)
        cost = "–" if isinstance(rule, CreditBridge) else arithmetic(rule)  # which differs after its warm-up
        rows.append([called(rule), rule.needs, cost, yes(takes_maps(rule)), yes(stackable(config))])
    return table(headings, rows)


def every_rule() -> Iterator[Rule]:
    for name, kind in RULES.items():
        yield kind()
        if name == "fa":
            yield FeedbackAlignment(level="layer")


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def takes_maps(rule: Rule) -> bool:
    """Whether the rule trains a network whose units change the shape of their states."""
    signature = Signature(shape=(1, 4, 4), outputs=2, classifies=True)
    net = ConvNet(channels=(4, 6), d=8).build(signature, torch.Generator().manual_seed(0))
    try:
        CreditAssignment(net, rule, sample=torch.zeros(4, 1, 4, 4))
    except SondeError:
        return False
    return True


def paragraphs(kind: type[Rule]) -> list[str]:
    """A rule's docstring, unwrapped; what differs from the paper and the exact limits are paragraphs."""
    text = re.sub(r"\n(?=(Not as in the paper|Exact limits?|Version \d):?)", "\n\n", inspect.getdoc(kind) or "")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def differences() -> str:
    """What else than the division by the RMS is not as in a rule's paper."""
    found = []
    for name, kind in RULES.items():
        for text in paragraphs(kind):
            if text.startswith("Not as in the paper:"):
                more = text.removeprefix("Not as in the paper:").strip()
                more = more.removeprefix("credit is divided by its batch RMS (`credit_scale`)")
                if more := more.lstrip(",; ").removeprefix("and ").strip(". "):
                    found.append(f"- `{name}`: {more}.")
    return "\n".join(found)


def undivided() -> str:
    """The rules whose credit is not divided by its root mean square."""
    *most, last = (f"`{name}`" for name, kind in RULES.items() if kind().credit_scale == "none")
    return f"{', '.join(most)} and {last}"


def sections() -> str:
    """Every rule's label and docstring under its name."""
    parts = []
    for name, kind in RULES.items():
        parts += [f"### `{name}`: {kind().label}", *paragraphs(kind)]
    return "\n\n".join(parts)


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

    def ranked(self, configs: Iterable[RunConfig]) -> list[RunConfig]:
        """The most accurate first; a rule that is younger than the record of 0.1.0 may have no stored run yet."""
        needed = [c for c in configs if c.id in self.ended or name_of("rule", c.rule) in RULE_DEFAULTS]
        return sorted(needed, key=lambda config: -self.reached(config))

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
    return depth_matters(model, rule, scale="quick", seed=SEED, probes=DEPTH_PROBES)


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
    configs = trained.ranked(quick(SMALL_MLP, rule) for rule in COMPARED)
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
    if config.rule.undefined_credit:
        return "undefined"
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
    configs = trained.ranked(on_hierarchy(rule) for rule in COMPARED)
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
    return f"{count_operations(net, rule, x) / count_operations(net, Backprop(), x):.2f}"


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
        rules=rules(),
        differences=differences(),
        undivided=undivided(),
        sections=sections(),
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
    text = page(stores, json.loads(TIMES.read_text()))
    (HERE / "rules.md").write_text(text)


if __name__ == "__main__":
    sys.exit(write())
