"""Controls of the audit, each a study of its own.

`credit_at`: from which state's credit should a block learn, its output or its input?
`random_targets`: does the residual stream grow if there is nothing to learn?
`penalty`: what does a penalty on what blocks add to the stream change?
`trained_blocks`: does each block that learns help, counted from the top?
`depth`: how far down does the credit of feedback alignment stay aligned?
`deep`: which rules train 64 and 128 residual blocks?
`linear_quadratic`: is the credit right where the costate is known?

Each varies one thing.  A finding for every rule and value has accuracy, stream and cosine; the first finding compares
the values.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sonde.analysis.conclusions import Conclusion, n_seeds
from sonde.analysis.recovery import Accuracy
from sonde.config import Optimiser, Probing, RunConfig
from sonde.core.formatting import accuracy, listed, number, signed
from sonde.core.seed_statistics import Summary, paired, summarise, summarise_known
from sonde.metrics import TRAINED
from sonde.models import Model, ResidualMLP, StudentNet
from sonde.rules import (
    RULES,
    Backprop,
    CreditBridge,
    DirectFeedback,
    FeedbackAlignment,
    Frozen,
    PredictiveCoding,
    PredSim,
    Rule,
    StateBridge,
)
from sonde.rules.rule import CreditAt, LocalRule
from sonde.store.run import Run
from sonde.studies.recipes import DEPTH_PROBES, QUICK_SEEDS, SEEDS, classification, depth_matters
from sonde.studies.rules import AUDITED
from sonde.studies.study import Gathered, Study, StudyFinding
from sonde.tasks import Cifar10, Digits, LinearQuadratic, RandomHierarchy

PENALTIES = (0.0, 1e-4, 1e-2)
DEPTHS = {"quick": (2, 4, 8), "full": (2, 4, 6, 8, 12)}
DEEP = (4, 64, 128)
DEEP_PROBES = replace(DEPTH_PROBES, names=("loss", "hidden_norm", "credit_norm", "credit_cosine"))
PENALTY_EPOCHS = 30
CREDIT_AT_EPOCHS = 12
_STREAM, _COSINE, _RHO, _NUDGE = "‖h_L‖", "cosine", "ρ", "nudge"


def _network(scale: str, **options: Any) -> ResidualMLP:
    """The audit's; at quick scale narrower than there, so that no study seems half trained by another's runs."""
    return ResidualMLP(d=256 if scale == "full" else 48, L=4, **options)


def _probes(scale: str) -> Probing:
    return AUDITED if scale == "full" else DEPTH_PROBES


def _depth_matters(
    scale: str, seeds: Sequence[int], networks: Iterable[tuple[Model, Rule]], epochs: int | None = None
) -> list[RunConfig]:
    """Runs on the task where blocks must learn; `epochs` are those of the full scale."""
    how: dict[str, Any] = {"scale": scale, "probes": _probes(scale), "epochs": epochs if scale == "full" else None}
    pairs = list(networks)
    return [depth_matters(model, rule, seed=seed, **how) for seed in seeds for model, rule in pairs]


def _credit_at(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """Rules that name a credit for every state, which blocks take at their output or at their input.

    Both bridges read states as they are, as the record's do; at quick scale the Credit Bridge is left out.
    """
    kinds: tuple[LocalRule, ...] = (FeedbackAlignment(), DirectFeedback(), StateBridge(input_norm="none"))
    kinds += (CreditBridge(input_norm="none"),) if scale == "full" else ()
    places: tuple[CreditAt, ...] = ("output", "input")
    rules = [replace(rule, credit_at=place) for rule in kinds for place in places]
    if scale == "quick":
        return _depth_matters(scale, seeds, ((_network(scale), rule) for rule in rules))
    return [
        classification(_network(scale), rule, scale=scale, seed=seed, epochs=CREDIT_AT_EPOCHS)
        for seed in seeds
        for rule in rules
    ]


def _random_targets(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """The audit's network and recipe on images with random labels."""
    task = Cifar10(random_labels=True) if scale == "full" else Digits(random_labels=True)
    rules: tuple[Rule, ...] = (Backprop(), FeedbackAlignment(), DirectFeedback())
    return [
        replace(classification(_network(scale), rule, scale=scale, seed=seed), task=task, probes=_probes(scale))
        for seed in seeds
        for rule in rules
    ]


def _penalty(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """Each rule without a penalty and with two; at quick scale without the Credit Bridge, and with one."""
    full = scale == "full"
    kinds = (Backprop, FeedbackAlignment, DirectFeedback, StateBridge, *((CreditBridge,) if full else ()))
    weights = PENALTIES if full else (PENALTIES[0], PENALTIES[-1])
    rules = (kind(penalty=weight) for kind in kinds for weight in weights)
    return _depth_matters(scale, seeds, ((_network(scale), rule) for rule in rules), PENALTY_EPOCHS)


def _trained_blocks(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """The last k = 0 … L blocks learn; with k = L that is the rule as it is."""
    networks = [_network(scale, trained_blocks=k) for k in range(_network(scale).L)] + [_network(scale)]
    return _depth_matters(
        scale, seeds, ((model, rule) for rule in (Backprop(), DirectFeedback()) for model in networks)
    )


def _depth(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """FA at one width and several depths."""
    d = 512 if scale == "full" else 48
    return _depth_matters(
        scale, seeds, ((ResidualMLP(d=d, L=depth), FeedbackAlignment()) for depth in DEPTHS[scale]), 100
    )


def _deep(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """Narrow blocks on the random hierarchy.

    PC has a short inference with a small rate, which moves the states little, and a long one.  At full scale the long
    one takes at least as many steps as there are blocks: the error reaches every block, though the lower ones faintly.
    """
    full = scale == "full"
    short = PredictiveCoding(steps=5, rate=0.05)

    def rules(depth: int) -> list[Rule]:
        long = PredictiveCoding(steps=max(16, depth) if full else 16)
        scaled = [replace(pc, depth_scale=True) for pc in (short, long)]
        return [Backprop(), DirectFeedback(), Frozen(), PredSim(), short, long, *scaled]

    configs = [
        depth_matters(ResidualMLP(d=32, L=depth), rule, scale="quick", seed=seed, probes=DEEP_PROBES, epochs=10)
        for seed in seeds
        for depth in DEEP
        for rule in rules(depth)
    ]
    return [
        replace(config, task=RandomHierarchy(), batch_size=256, scale="full" if full else "quick") for config in configs
    ]


def _linear_quadratic(scale: str, seeds: Sequence[int]) -> list[RunConfig]:
    """A linear network that stays as it is, under rules that learn their credit, and DFA."""
    full = scale == "full"
    d, depth, samples, epochs = (64, 12, 25_600, 80) if full else (16, 4, 6400, 16)
    rules: tuple[Rule, ...] = (
        DirectFeedback(),
        StateBridge(input_norm="none"),
        CreditBridge(input_norm="none"),
        CreditBridge(input_norm="none", warmup=0.0, perturb=0.1),
    )
    probes = Probing(
        names=("loss", "hidden_norm", "grad_norm", "credit_norm", "credit_cosine"),
        schedule="every_k",
        k=20 if full else 4,
        costly=("rho", "nudge"),
        size=1024 if full else 128,
    )
    return [
        RunConfig(
            model=StudentNet(d=d, L=depth, alpha=0.0),
            rule=rule,
            task=LinearQuadratic(d=d, samples=samples, test_samples=1024),
            optimiser=Optimiser(lr=0.0, weight_decay=0.0, schedule="constant"),
            probes=probes,
            batch_size=256 if full else 64,
            epochs=epochs,
            seed=seed,
            scale="full" if full else "quick",
        )
        for seed in seeds
        for rule in rules
    ]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The runs of one rule at one value of what is varied; each is one seed."""

    rule: str
    label: str
    value: float | None  # None where nothing but the rule varies
    runs: list[Run]

    def at(self, metric: str, layer: int | None = None) -> Summary:
        """A metric after the last epoch, over seeds."""
        return summarise_known([run.at(metric, run.epochs, layer) for run in self.runs])

    def deep(self, metric: str) -> Summary:
        """The mean of a metric over layers 1 … L−1."""
        return summarise_known([run.mean(metric, run.epochs, run.deep) for run in self.runs])

    @property
    def stream(self) -> Summary:
        """‖h_L‖ after the last epoch, the geometric mean over seeds."""
        return _geometric(run.at("hidden_norm", run.epochs, run.depth).value for run in self.runs)

    @property
    def growth(self) -> Summary:
        """‖h_L‖ after the last epoch ÷ that at the start, the geometric mean over seeds."""
        norms = [[run.at("hidden_norm", epoch, run.depth).value for epoch in (run.epochs, 0)] for run in self.runs]
        return _geometric(last / first if first > 0 else math.nan for last, first in norms)

    @property
    def reached(self) -> Summary:
        """How many blocks have a credit other than zero after the last epoch."""
        return summarise(
            sum(run.at("credit_norm", run.epochs, layer).value > 0 for layer in run.layers) for run in self.runs
        )

    @property
    def accuracy_variance(self) -> float:
        """Of the mean test accuracy: from the spread over seeds; of one seed from its test samples alone."""
        reached = [run.at("test_acc", run.epochs) for run in self.runs]
        if len(reached) > 1:
            return self.at("test_acc").std ** 2 / len(reached)
        return Accuracy(value=reached[0].value, samples=reached[0].samples).variance

    @property
    def takes_input(self) -> bool:
        """Whether blocks learn from the credit at their input."""
        return bool(self.runs[0].config["rule"].get("credit_at") == "input")


def _geometric(values: Iterator[float]) -> Summary:
    logs = summarise(math.log(value) if value > 0 else math.nan for value in values)
    return replace(logs, mean=math.exp(logs.mean), std=math.nan) if logs.n else logs


@dataclass(frozen=True, kw_only=True)
class Control:
    """What is varied: its symbol, and its value in a run.  `metric` is what the values are compared by."""

    symbol: str
    value: Callable[[Run], float | None]
    headline: Callable[["Control", list[Setting]], str]

    def findings(self, gathered: Gathered) -> list[StudyFinding]:
        """What the values change, then every setting."""
        found = self.settings(gathered.stored.runs)
        headline = self.headline(self, found)
        return [
            StudyFinding(sentence=headline, shown={}, numbers={}, **_origin(gathered.stored.runs)),
            *map(self._finding, found),
        ]

    def settings(self, runs: Sequence[Run]) -> list[Setting]:
        """The runs by rule and value, in the order of the table of rules, values ascending."""
        groups: dict[tuple[str, str, float | None], list[Run]] = {}
        for run in runs:
            label = run.about["rule_label"] if self.symbol != "λ" else str(run.about["rule_label"]).partition(" (")[0]
            groups.setdefault((run.rule, str(label), self.value(run)), []).append(run)
        ranks = {rule: rank for rank, rule in enumerate(RULES)}
        keys = sorted(groups, key=lambda key: (ranks.get(key[0], len(ranks)), key[1], -1 if key[2] is None else key[2]))
        return [Setting(rule=key[0], label=key[1], value=key[2], runs=groups[key]) for key in keys]

    def name(self, one: Setting) -> str:
        """The rule and the value: "DFA, λ = 0.01"."""
        return one.label if one.value is None else f"{one.label}, {self.symbol} = {one.value:g}"

    def shown(self, one: Setting) -> dict[str, str]:
        """The cells of a setting."""
        value = {} if one.value is None else {self.symbol: f"{one.value:g}"}
        cells = {"rule": one.label, **value, "n": str(len(one.runs))}
        reached = one.at("test_acc")
        if reached.n:
            cells[TRAINED["test_acc"].label] = accuracy(reached.mean, reached.std)
            cells[_STREAM] = number(one.stream.mean)
        else:
            cells |= {_RHO: _spread(one.deep("rho")), _NUDGE: _spread(one.deep("nudge[0.1]"))}
        return cells | {f"{_COSINE}, layers 1 … L−1": _spread(one.deep("credit_cosine"))}

    def said(self, one: Setting) -> str:
        """A setting in a sentence."""
        cells = list(self.shown(one).items())
        named = 3 if one.value is not None else 2
        return f"{self.name(one)}: {', '.join(f'{heading} {cell}' for heading, cell in cells[named:])}."

    def _finding(self, one: Setting) -> StudyFinding:
        numbers = {"rule": one.rule, "rule_label": one.label, "value": one.value, "n": len(one.runs)}
        numbers |= {"test_acc": one.at("test_acc").mean, "stream": one.stream.mean, "growth": one.growth.mean}
        numbers |= {"cosine": one.deep("credit_cosine").mean}
        return StudyFinding(sentence=self.said(one), shown=self.shown(one), numbers=numbers, **_origin(one.runs))


def _origin(runs: Sequence[Run]) -> dict[str, Any]:
    """The runs and seeds of a finding."""
    return {"runs": tuple(run.id for run in runs), "seeds": tuple(sorted({run.seed for run in runs}))}


def _spread(summary: Summary) -> str:
    spread = "" if math.isnan(summary.std) else f" ± {number(summary.std)}"
    return number(summary.mean) + spread


def _by_rule(found: list[Setting]) -> dict[str, list[Setting]]:
    groups: dict[str, list[Setting]] = {}
    for one in found:
        groups.setdefault(one.label, []).append(one)
    return groups


def _compare_accuracies(control: Control, found: list[Setting]) -> str:
    """Every rule's accuracy at the first and the last value, and where it is highest."""
    said: list[str] = []
    for label, settings in _by_rule(found).items():
        known = {f"{one.value:g}": one.at("test_acc").mean for one in settings if one.at("test_acc").n}
        if not known:
            continue
        ends = list(dict.fromkeys([next(iter(known)), next(reversed(known))]))
        shown = " → ".join(f"{accuracy(known[value])} at {control.symbol} = {value}" for value in ends)
        notes = [f"{signed(100 * (known[ends[1]] - known[ends[0]]))} points"] if len(ends) > 1 else []
        if len(known) > 2:
            best = [value for value, mean in known.items() if mean == max(known.values())]
            notes += [f"highest at {control.symbol} = {listed(best)}"]
        said.append(f"{label} {shown}" + (f" ({', '.join(notes)})" if notes else ""))
    return f"Test accuracy of each rule. {'. '.join(said)}." if said else "No run has an accuracy."


SURE = 2  # standard errors of a difference of two accuracies, above which it is not left to chance


def _exceeds(one: Setting, other: Setting) -> bool:
    """Whether the test accuracy at the same value is higher by more than `SURE` standard errors."""
    if one.value != other.value:
        return False
    gain = one.at("test_acc").mean - other.at("test_acc").mean
    return gain > SURE * math.sqrt(one.accuracy_variance + other.accuracy_variance)


def _compare_depths(control: Control, found: list[Setting]) -> str:
    """Which rules exceed frozen blocks at each depth, and which rules leave blocks without credit."""
    above = [
        f"{listed(one.label for one in found if _exceeds(one, base)) or 'none'} at {control.symbol} = {base.value:g}"
        for base in found
        if base.rule == "frozen"
    ]
    short: dict[str, list[str]] = {}
    for label, settings in _by_rule(found).items():
        partly = [f"{one.reached.mean:g} of {one.value:g}" for one in settings if one.reached.mean < (one.value or 0)]
        if partly and settings[0].rule != "frozen":
            short.setdefault(listed(partly), []).append(label)
    said = [f"More accurate than frozen blocks, by over {SURE} standard errors: {'; '.join(above)}."] if above else []
    said += [f"Only {blocks} blocks have a credit under {listed(of)}." for blocks, of in short.items()]
    return " ".join(said) or _compare_accuracies(control, found)


def _compare_cosines(control: Control, found: list[Setting]) -> str:
    """Every rule's cosine by value."""
    said = []
    for label, settings in _by_rule(found).items():
        cosines = [number(one.deep("credit_cosine").mean) for one in settings]
        by_value = (
            f"{cosine} at {control.symbol} = {one.value:g}" for cosine, one in zip(cosines, settings, strict=True)
        )
        said.append(f"{label}: {', '.join(by_value)}")
    return f"Cosine of credit and gradient, mean over layers 1 … L−1: {'; '.join(said)}."


def _compare_places(control: Control, found: list[Setting]) -> str:
    """Credit at the output beside credit at the input, rule by rule; differences of means over the same seeds."""
    pairs = {
        one.label: _difference(one, other)
        for one in found
        for other in found
        if one.rule == other.rule and other.takes_input and not one.takes_input
    }
    known = {label: points for label, points in pairs.items() if points.n}
    if not known:
        return "No rule was trained in both forms."
    better = sum(points.mean > 0 for points in known.values())
    gains = listed(f"{label} {signed(100 * points.mean)}" for label, points in known.items())
    return (
        f"Credit at a block's output is better than credit at its input for {better} of {len(known)} rules. "
        f"Test accuracy, output minus input, in points: {gains} ({n_seeds(points.n for points in known.values())})."
    )


def _difference(one: Setting, other: Setting) -> Summary:
    """Test accuracy of one − other, over the seeds that have both."""
    reached, its = ({run.seed: run.at("test_acc", run.epochs).value for run in side.runs} for side in (one, other))
    return summarise(paired(reached, its).differences.values())


def _compare_growth(control: Control, found: list[Setting]) -> str:
    """How far the stream grew under each rule."""
    grown = listed(f"×{number(one.growth.mean)} under {one.label}" for one in found)
    reached = listed(f"{accuracy(one.at('test_acc').mean)}" for one in found)
    epochs = found[0].runs[0].epochs
    return f"With random labels, ‖h_L‖ changes {grown} in {epochs} epochs. Test accuracy is {reached}; chance is 10 %."


def _compare_costates(control: Control, found: list[Setting]) -> str:
    """How near each credit is to the costate."""
    said = listed(f"{one.label} {_spread(one.deep('credit_cosine'))}" for one in found)
    return f"Cosine of credit and true costate, mean over layers 1 … L−1. {said}."


def _study(
    question: str,
    configs: Callable[[str, Sequence[int]], list[RunConfig]],
    headline: Callable[[Control, list[Setting]], str],
    symbol: str = "rule",
    value: Callable[[Run], float | None] = lambda run: None,
) -> Study:
    return Study(
        question=question,
        seeds={"quick": QUICK_SEEDS, "full": SEEDS},
        configs=configs,
        findings=Control(symbol=symbol, value=value, headline=headline).findings,
        conclusion=_conclusion,
    )


def _conclusion(findings: Sequence[StudyFinding]) -> Conclusion:
    """What the values change, then every setting."""
    headline, *settings = findings
    headings = list(settings[0].shown) if settings else []
    n = [len(setting.seeds) for setting in settings]
    compared = "; the means are compared" if max(n, default=0) > 1 else ", so there is no interval"
    return Conclusion(
        answer=headline.sentence,
        columns={heading: "left" if heading == "rule" else "right" for heading in headings},
        rows=[list(setting.shown.values()) for setting in settings],
        sure=f"{n_seeds(n)} for each setting{compared}.",
    )


def _trained(run: Run) -> float:
    trained = run.complete_config["model"].get("trained_blocks")
    return float(run.depth if trained is None else trained)


CONTROL_STUDIES: dict[str, Study] = {
    "credit_at": _study(
        "from which state's credit should a block learn, its output or its input?", _credit_at, _compare_places
    ),
    "random_targets": _study(
        "does the residual stream grow if there is nothing to learn?", _random_targets, _compare_growth
    ),
    "penalty": _study(
        "what does a penalty on what blocks add to the stream change?",
        _penalty,
        _compare_accuracies,
        symbol="λ",
        value=lambda run: float(run.config["rule"]["penalty"]),
    ),
    "trained_blocks": _study(
        "does each block that learns help, counted from the top?",
        _trained_blocks,
        _compare_accuracies,
        symbol="k",
        value=_trained,
    ),
    "depth": _study(
        "how far down does the credit of feedback alignment stay aligned?",
        _depth,
        _compare_cosines,
        symbol="L",
        value=lambda run: float(run.depth),
    ),
    "deep": _study(
        "which rules train 64 and 128 residual blocks?",
        _deep,
        _compare_depths,
        symbol="L",
        value=lambda run: float(run.depth),
    ),
    "linear_quadratic": _study("is the credit right where the costate is known?", _linear_quadratic, _compare_costates),
}
