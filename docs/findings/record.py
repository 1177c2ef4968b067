"""The record that the audit repeats, and which difference of recipe could explain a difference from it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from sonde.analysis.audit import Audit, RuleAudit
from sonde.config import RunConfig, change, label_of, name_of
from sonde.core.formatting import accuracy, number, signed
from sonde.core.seed_statistics import Summary, paired, summarise, t_interval
from sonde.rules import RULES
from sonde.store.run import Runs
from sonde.studies import STUDIES
from sonde.studies.study import Gathered, gather

RECORDED = {
    "bp": 0.615,
    "fa": 0.401,
    "dfa": 0.306,
    "state_bridge": 0.205,
    "credit_bridge": 0.289,
    "frozen": 0.349,
}
"""Test accuracy after 100 epochs on the original pixels, three seeds, on GPUs: the record that the audit repeats."""

SHORT = 12  # epochs of the runs that ask for it
CHANGES: dict[str, Mapping[str, Any]] = {
    "unchanged": {},
    "no augmentation": {"task.augment": False},
    "no weight decay": {"optimiser.weight_decay": 0.0},
    "constant rate": {"optimiser.schedule": "constant"},
    "credit not scaled": {"rule.credit_scale": "none"},
}
"""What is changed in the recipe of the audit, one thing at a time."""


class Form(NamedTuple):
    """The record's form of a rule where it differs from ours; as far as its published notes tell."""

    rule: str
    words: str
    epochs: int
    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]  # beside `ours`
    study: str = "audit"  # whose probes the run of our form has; they change no bit of training


LATELY = 5  # epochs
FULL = 100  # epochs of the record
RAW = {"rule.input_norm": "none"}
OF_INPUT = {"rule.credit_at": "input"}
CONSTANT = {"optimiser.schedule": "constant"}
_INPUT, _RAW_INPUT = "credit at a block's input", "credit at a block's input; both with `input_norm: none`"
FORMS = (
    *(Form("state_bridge", _RAW_INPUT, epochs, RAW, OF_INPUT) for epochs in (SHORT, FULL)),
    *(Form("credit_bridge", _RAW_INPUT, epochs, RAW, OF_INPUT) for epochs in (SHORT, FULL)),
    *(Form(rule, _INPUT, epochs, {}, OF_INPUT) for rule in ("fa", "dfa") for epochs in (SHORT, FULL)),
    Form("frozen", "constant rate", 30, {}, CONSTANT, "rules"),
    Form("frozen", "constant rate", FULL, {}, CONSTANT),
)
"""What the record does in another way than the audit, one line each; every run differs from ours in that alone."""

CHANGED_RULES = ("bp", "fa", "dfa", "frozen")
CHANGED_SEED = 42
SEEDS = STUDIES["audit"].seeds["full"]


def compared(audited: Audit) -> list[list[str]]:
    """Rule, our test accuracy by seed, the record's."""
    return [
        [
            rule.label,
            ", ".join(
                f"{accuracy(one.run.at('test_acc', one.run.epochs).value)} ({one.run.seed})" for one in rule.runs
            ),
            accuracy(RECORDED[rule.rule]),
        ]
        for recipe in audited.recipes
        for rule in recipe.rules
        if rule.runs
    ]


def above_record(audited: Audit, rule: str) -> str:
    """By how many points the mean of our seeds is above the record, or below it."""
    return signed(100 * (_mean(audited, rule) - RECORDED[rule]))


def _mean(audited: Audit, rule: str) -> float:
    """Of our seeds, test accuracy."""
    (known,) = [one for one in audited.recipes[0].rules if one.rule == rule]
    return known.scalar("test_acc").mean


def changed_recipes(stored: Runs) -> list[list[str]]:
    """Each change of the recipe: the rules' test accuracy, and what the change adds to it in points."""
    reached = {label: [_reached(stored, rule, label) for rule in CHANGED_RULES] for label in CHANGES}
    (unchanged, first), *changes = reached.items()
    return [
        [unchanged, *(accuracy(value) for value in first)],
        *(
            [label, *(_with_gain(value, base) for value, base in zip(values, first, strict=True))]
            for label, values in changes
        ),
        [
            "no augmentation, noisy pixels",
            *(
                _with_gain(_of_noise(stored, rule), base)
                for rule, base in zip(CHANGED_RULES, reached["no augmentation"], strict=True)
            ),
        ],
    ]


def changed_runs(stored: Runs) -> Gathered:
    """The runs of every change of the recipe that was trained."""
    configs = [_changed(rule, label) for rule in CHANGED_RULES for label in CHANGES]
    return gather(stored, configs, "docs/findings/runs")


def _changed(rule: str, label: str) -> RunConfig:
    return _recipe(rule, {"epochs": SHORT, **CHANGES[label]})


def _recipe(rule: str, changes: Mapping[str, Any], study: str = "audit", seed: int = CHANGED_SEED) -> RunConfig:
    """A rule in the recipe of a study at full scale, with changes."""
    (config,) = (
        config
        for config in STUDIES[study].configs("full", (seed,))
        if (name_of("rule", config.rule), name_of("model", config.model)) == (rule, "residual_mlp")
    )
    return change(config, changes)


def _reached(stored: Runs, rule: str, label: str) -> float:
    """Test accuracy after the short recipe; NaN where there is no such run."""
    return _ended(stored, _changed(rule, label))


def _ended(stored: Runs, config: RunConfig) -> float:
    """Test accuracy after the last epoch; NaN where there is no such run."""
    rows = stored.rows.filter(run=config.id, metric="test_acc", epoch=config.epochs)
    return float(rows["value"].item()) if len(rows) else math.nan


class Compared(NamedTuple):
    """A form beside ours: accuracies by seed, and the range of the form's in its last epochs."""

    form: Form
    ours: dict[int, float]
    theirs: dict[int, float]
    lately: tuple[float, float]

    @property
    def cost(self) -> Summary:
        """Points that the form costs, over the seeds that have both."""
        differences = paired(self.ours, self.theirs).differences.values()
        return summarise(100 * difference for difference in differences)

    @property
    def from_record(self) -> float:
        """Points by which the form is above the record."""
        return 100 * (summarise(self.theirs.values()).mean - RECORDED[self.form.rule])


def _pair(form: Form, seed: int) -> tuple[RunConfig, RunConfig]:
    """Our form and the record's."""
    ours = _recipe(form.rule, {"epochs": form.epochs, **form.ours}, form.study, seed)
    return ours, _recipe(form.rule, {"epochs": form.epochs, **form.ours, **form.theirs}, seed=seed)


def compared_forms(stored: Runs) -> list[Compared]:
    """The forms of which a run is stored."""
    found = []
    for form in FORMS:
        pairs = {seed: _pair(form, seed) for seed in SEEDS}
        ours, theirs = (
            {seed: value for seed in SEEDS if not math.isnan(value := _ended(stored, pairs[seed][side]))}
            for side in (0, 1)
        )
        late = [value for seed in theirs for value in _late(stored, pairs[seed][1])]
        if theirs:
            found.append(Compared(form, ours, theirs, (min(late), max(late))))
    return found


def _late(stored: Runs, config: RunConfig) -> list[float]:
    """The test accuracy of the last epochs: at a constant rate the last alone says little."""
    late = pl.col("epoch") > config.epochs - LATELY
    return stored.rows.filter(late, run=config.id, metric="test_acc")["value"].to_list()


def forms(stored: Runs) -> list[list[str]]:
    """Rule, what the record does in another way, epochs, n, both accuracies, how theirs moves, the record's own."""
    rows = []
    for one in compared_forms(stored):
        form, (ours, theirs) = one.form, (summarise(side.values()) for side in (one.ours, one.theirs))
        gain = f" ({signed(-one.cost.mean)})" if one.cost.n else ""
        late = " to ".join(accuracy(value) for value in one.lately)
        full = f" ({signed(one.from_record)})" if form.epochs == FULL else ""
        rows.append(
            [
                label_of("rule", RULES[form.rule]()),
                form.words,
                str(form.epochs),
                f"{ours.n}, {theirs.n}",
                accuracy(ours.mean, ours.std) if ours.n else "not run",
                accuracy(theirs.mean, theirs.std) + gain,
                late,
                f"{accuracy(RECORDED[form.rule])}{full}",
            ]
        )
    return rows


def form_runs(stored: Runs) -> Gathered:
    """The runs of the record's forms and of ours beside them."""
    configs = {config.id: config for form in FORMS for seed in SEEDS for config in _pair(form, seed)}
    return gather(stored, list(configs.values()), "docs/findings/runs")


def explanation(stored: Runs, audited: Audit, rule: str) -> str | None:
    """What the record's form costs, where that is at least half of the difference; else None.

    The form that was trained for most epochs counts: a difference after few epochs may be gone at the end.
    """
    above = 100 * (_mean(audited, rule) - RECORDED[rule])
    known = [one for one in compared_forms(stored) if one.form.rule == rule and one.cost.n]
    if not known or above <= 0:
        return None
    one = max(known, key=lambda one: one.form.epochs)
    if one.cost.mean < above / 2:
        return None
    ended = max((one for one in compared_forms(stored) if one.form.rule == rule), key=lambda one: one.form.epochs)
    late = " to ".join(accuracy(value) for value in ended.lately)
    reached = summarise(ended.theirs.values())
    return (
        f"{label_of('rule', RULES[rule]())} ends {number(above)} points above the record. The record's form "
        f"({one.form.words}) costs {number(one.cost.mean)} points after {one.form.epochs} epochs, n = {one.cost.n}. "
        f"After {ended.form.epochs} epochs it reaches {accuracy(reached.mean)}, n = {reached.n} ({late} in its last "
        f"{LATELY} epochs). The record after {FULL} epochs is {accuracy(RECORDED[rule])}"
    )


def not_explained(stored: Runs, rule: str) -> str:
    """What the record's form of a rule does, in words, where it does not explain the difference."""
    known = [one for one in compared_forms(stored) if one.form.rule == rule and one.cost.n]
    if not known:
        return ""
    one = max(known, key=lambda one: one.form.epochs)
    return (
        f". The record's form ({one.form.words}) changes {signed(-one.cost.mean)} points after {one.form.epochs} "
        f"epochs, n = {one.cost.n}"
    )


def _of_noise(stored: Runs, rule: str) -> float:
    """Test accuracy on the images of noise.py; NaN where there is no such run."""
    of = [run.id for run in stored.runs if (run.config["task"]["name"], run.config["rule"]["name"]) == ("noise", rule)]
    rows = stored.rows.filter(pl.col("run").is_in(of), metric="test_acc", epoch=SHORT)
    return float(rows["value"].item()) if len(rows) else math.nan


def _with_gain(reached: float, base: float) -> str:
    if math.isnan(reached):
        return "not run"
    return f"{accuracy(reached)} ({signed(100 * (reached - base))})" if reached != base else "the same run"


def record_answer(stored: Runs, audited: Audit) -> str:
    """Whether the record's form explains it; else whether our seeds spread as far, or a change costs as much."""
    seeded = {rule.rule: rule for rule in audited.recipes[0].rules}
    by_form, within, beyond, explained = [], [], [], False
    for rule in ("state_bridge", "fa", "frozen", "dfa"):
        if why := explanation(stored, audited, rule):
            by_form.append(why)
            continue
        label, reached = label_of("rule", RULES[rule]()), _by_seed(seeded[rule])
        above = 100 * (sum(reached) / len(reached) - RECORDED[rule])
        around = t_interval(reached)
        said = f"{label[0].upper()}{label[1:]} ends {number(above)} points above the record, n = {len(reached)}"
        if around.reason is None:
            said += f", interval {accuracy(around.low)} to {accuracy(around.high)}"
        said += not_explained(stored, rule)
        if around.reason is None and around.low <= RECORDED[rule] <= around.high:
            within.append(said)
            continue
        costs = {
            label: 100 * (_reached(stored, rule, "unchanged") - _reached(stored, rule, label)) for label in CHANGES
        }
        trained = [one for one in costs.items() if not math.isnan(one[1])]
        if not trained:
            beyond.append(f"{said}. No change was trained")
            continue
        changed, most = max(trained, key=lambda one: one[1])
        explained = explained or most > above / 2
        cost = (
            f"“{changed}” costs most, {number(most)} points after {SHORT} epochs" if most > 0 else "none costs anything"
        )
        beyond.append(f"{said}. Among the changes below, {cost}")
    parts = []
    if by_form:
        parts.append(f"Part of the difference comes from the record's form. {'. '.join(by_form)}.")
    if within:
        parts.append(
            f"Seeds alone may explain these: the 95 % interval of our mean contains the record. {'. '.join(within)}."
        )
    if beyond:
        answer = (
            "One difference of recipe accounts for much of"
            if explained
            else "No difference of recipe that was tried explains"
        )
        parts.append(f"{answer} {'the rest' if within or by_form else 'it'}. {'. '.join(beyond)}.")
    return "\n\n".join(parts)


def _by_seed(rule: RuleAudit) -> list[float]:
    return [one.run.at("test_acc", one.run.epochs).value for one in rule.runs]
