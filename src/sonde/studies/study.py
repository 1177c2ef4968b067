"""What a study is: the runs it needs, those of a store that belong to it, and what it finds in their rows."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import polars as pl

from sonde.analysis.audit import AuditCache
from sonde.analysis.conclusions import Conclusion
from sonde.analysis.evidence import Evidence
from sonde.analysis.runs import evidence_lines, only
from sonde.config import SECTIONS, RunConfig, changed, keys, options, parse, to_tree
from sonde.core.errors import SondeError, nearest
from sonde.core.formatting import gradient_change, number, stream_verdict
from sonde.core.run_ids import differences, identity, run_id, shown, without
from sonde.core.seed_statistics import over_seeds
from sonde.store.folder import recipe_key
from sonde.store.load import RowReader
from sonde.store.readings import Readings, rows_of_runs
from sonde.store.run import NO_CONFIGURATION, Run, Runs, flat_recipe

EvidenceLine = Mapping[str, Any]
"""A run as its line of `Evidence.runs`."""


@dataclass(frozen=True)
class Gathered:
    """The stored runs of a study, as evidence for figures, and the other runs of the store: run → why."""

    stored: Runs
    evidence: Evidence
    left_out: dict[str, str]
    audits: AuditCache  # of the whole store
    beside: Runs  # complete runs of another recipe that the study trains, too


@dataclass(frozen=True, kw_only=True)
class StudyFinding:
    """A sentence computed from rows, the numbers in it, and the runs they come from."""

    sentence: str
    shown: dict[str, str]  # heading → cell, for a table of the study's findings
    numbers: dict[str, Any]
    runs: tuple[str, ...]
    seeds: tuple[int | None, ...]

    def cell(self, heading: str) -> str:
        """What the table of findings, or else the numbers, have under a heading."""
        return str(self.shown.get(heading, self.numbers.get(heading, "–")))


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """A question, the configurations that answer it, and the answer's computation."""

    question: str
    seeds: dict[str, tuple[int, ...]]  # by default, at each scale
    configs: Callable[[str, Sequence[int]], list[RunConfig]]  # (scale, seeds) → complete configurations
    findings: Callable[[Gathered], list[StudyFinding]]
    conclusion: Callable[[Sequence[StudyFinding]], Conclusion]  # what `sonde run` ends with, from the findings
    beside: Callable[[str, Sequence[int]], list[RunConfig]] = lambda scale, seeds: []
    """Runs of another recipe, for findings and for figures that ask for them; trained with the study as it is."""


class NoRuns(SondeError):
    """The store holds no complete run of the study, but others: run → why it is not one."""

    def __init__(self, message: str, left_out: Mapping[str, str]) -> None:
        super().__init__(message)
        self.left_out = left_out


_Tree = Mapping[str, Any]


@cache
def study_recipes(study: Study, scale: str, *, beside: bool = False) -> Mapping[str, _Tree]:
    """Recipe key → configuration as it is stored, with seed 0.  Built once in a process.

    With `beside`, the recipes that the study trains beside its own.
    """
    configs = study.beside if beside else study.configs
    return {recipe_key(tree): tree for tree in map(to_tree, configs(scale, [0]))}


@dataclass(frozen=True)
class WantedRuns:
    """The runs that a study wants: recipes, and the seeds of each."""

    trees: Mapping[str, _Tree]  # by recipe key: the configuration as it is stored, of any seed
    seeds: Mapping[str, frozenset[int]]  # by recipe key

    @classmethod
    def of(cls, configs: Iterable[RunConfig]) -> "WantedRuns":
        """The recipes of these configurations, and the seeds of each."""
        trees: dict[str, _Tree] = {}
        seeds: dict[str, set[int]] = {}
        for config in configs:
            tree = to_tree(config)
            seeds.setdefault(key := recipe_key(tree), set()).add(config.seed)
            trees.setdefault(key, tree)
        return cls(trees, {key: frozenset(some) for key, some in seeds.items()})

    @classmethod
    def of_study(cls, study: Study, scale: str, seeds: Iterable[int], *, beside: bool = False) -> "WantedRuns":
        """Every recipe of a study with each of these seeds; no configuration is built for a seed."""
        trees = study_recipes(study, scale, beside=beside)
        return cls(trees, dict.fromkeys(trees, frozenset(seeds)))

    def __contains__(self, run: Run) -> bool:
        """Whether a stored run is a wanted one: by its whole configuration, since somebody may choose an id."""
        return run.seed in self.seeds.get(run.recipe, ()) and run.id == run_id(run.config)

    def __len__(self) -> int:
        return sum(map(len, self.seeds.values()))

    def complete(self, stored: Runs) -> list[Run]:
        """The stored runs that are wanted and complete."""
        return [run for run in stored.runs if run.manifest.state == "complete" and run in self]


def gather(
    stored: Runs,
    configs: Sequence[RunConfig] | WantedRuns,
    source: str,
    audits: AuditCache | None = None,
    *,
    plugins: bool = False,
    beside: Sequence[RunConfig] | WantedRuns = (),
    reader: RowReader | None = None,
) -> Gathered:
    """The stored, complete runs of the given configurations; with `plugins`, those of plugin rules beside them.

    Runs of `beside` are kept apart from the evidence: most figures are of the study's own runs.  With a `reader`, the
    evidence reads its rows when they are asked for.
    """
    wanted, aside = (some if isinstance(some, WantedRuns) else WantedRuns.of(some) for some in (configs, beside))
    inside = wanted.complete(stored)
    several: dict[str, str] = {}
    if plugins and inside:
        more, several = _of_plugin_rules(stored, wanted)
        ids = {run.id for run in inside} | more
        inside = [run for run in stored.runs if run.id in ids]
    chosen, why = {run.id for run in inside}, _Why(wanted)
    more_runs = [run for run in aside.complete(stored) if run.id not in chosen]
    used = chosen | {run.id for run in more_runs}
    left_out = {run.id: several.get(run.id) or why(run) for run in stored.runs if run.id not in used}
    left_out |= {run.id: NO_CONFIGURATION for run in stored.watched} | stored.broken
    if not inside:
        reasons = "; ".join(f"{run}: {why}" for run, why in list(left_out.items())[:3]) or "the store is empty"
        raise NoRuns(f"{source} holds no complete run of this study ({reasons})", left_out)
    runs = evidence_lines(inside)
    rows = rows_of_runs(stored.rows, chosen) if left_out or more_runs else stored.rows
    more_rows = rows_of_runs(stored.rows, {run.id for run in more_runs}) if more_runs else stored.rows.clear()
    others = Evidence(reader or more_rows, evidence_lines(more_runs), source) if more_runs else None
    return Gathered(
        Runs(rows, inside),
        Evidence(reader or rows, runs, source, beside=others),
        left_out,
        audits or AuditCache(stored, reader),
        Runs(more_rows, more_runs),
    )


def _of_plugin_rules(stored: Runs, wanted: WantedRuns) -> tuple[set[str], dict[str, str]]:
    """Complete runs that differ from a wanted one in nothing but a plugin rule; and those of ambiguous rules.

    A plugin that changed, or was trained with several options, is several rules of one name: run → why it is left out.
    """
    custom = [run for run in stored.runs if "source" in run.config["rule"] and run.manifest.state == "complete"]
    besides = ("rule", "seed")
    seeds: dict[str, frozenset[int]] = {}
    for key, tree in wanted.trees.items() if custom else ():
        other = identity(without(tree, besides))
        seeds[other] = seeds.get(other, frozenset()) | wanted.seeds[key]
    of_rule: dict[str, dict[str, list[str]]] = {}
    for run in custom:
        if run.seed in seeds.get(identity(without(run.config, besides)), ()):
            of_rule.setdefault(run.rule, {}).setdefault(json.dumps(run.config["rule"]), []).append(run.id)
    alone = {run for forms in of_rule.values() if len(forms) == 1 for runs in forms.values() for run in runs}
    several = {
        run: f"there are {len(forms)} rules called {name}: choose one with --set rule+=file.py:{name}"
        for name, forms in of_rule.items()
        if len(forms) > 1
        for runs in forms.values()
        for run in runs
    }
    return alone, several


NO_PART = "is not part of this study"


class _Why:
    """Why a run is left out.  Seeds make no difference, so every recipe is compared once."""

    def __init__(self, wanted: WantedRuns) -> None:
        self.wanted = wanted
        self.seeds = {seed for seeds in wanted.seeds.values() for seed in seeds}
        self.pairs = {(tree["model"]["name"], tree["task"]["name"]) for tree in wanted.trees.values()}
        self.nearest: dict[str, str] = {}

    def __call__(self, run: Run) -> str:
        if run in self.wanted:
            return f"it is {run.status.state}"
        pair = (run.config["model"]["name"], run.config["task"]["name"])
        if pair not in self.pairs:
            return f"{pair[0]} on {pair[1]} {NO_PART}"
        if run.recipe not in self.nearest:
            nearest = min((differences_to(run, key, tree) for key, tree in self.wanted.trees.items()), key=len)
            self.nearest[run.recipe] = ", ".join(nearest)
        if self.nearest[run.recipe]:
            return self.nearest[run.recipe]
        if run.seed not in self.seeds:
            return f"seed {run.seed} was not asked for"
        return "its configuration is the same, but it is stored under another id"


def differences_to(run: Run, recipe: str, tree: Mapping[str, Any]) -> list[str]:
    """The keys in which a run differs from the recipe of this key and configuration, with both values."""
    return differences(flat_recipe(run.recipe, run.config), flat_recipe(recipe, tree))


def stream_and_gradient(readings: Readings, run: EvidenceLine) -> dict[str, float]:
    """Of a classifying run: its accuracy, and what became of the residual stream and the BP gradient at the top."""
    top = run["depth"]
    stream, per_error = (readings.change(run, metric, layer=top) for metric in ("hidden_norm", "grad_per_error"))
    return {
        "test_acc": readings.value(run, "test_acc", epoch=run["epochs"]),
        "stream_change": stream,
        "gradient_change": readings.change(run, "grad_norm", layer=top),
        "per_error_change": per_error,
        "scale_free_change": per_error * stream,
    }


def stream_words(over: Mapping[str, Mapping[str, Any]], n: Mapping[str, str], when: str = "") -> str:
    """What became of stream and gradient, each with its own n: "‖h_L‖ grows ×12; the gradient holds"."""
    changes = (over[name]["mean"] for name in ("gradient_change", "per_error_change", "scale_free_change"))
    return (
        f"{stream_verdict(over['stream_change']['mean'])}{when}{n['stream_change']}; "
        f"{gradient_change(*changes)}{n['per_error_change'] or n['gradient_change']}"
    )


def stream_cells(over: Mapping[str, Mapping[str, Any]], n: Mapping[str, str]) -> dict[str, str]:
    """The same as cells of a table."""
    headings = {"‖h_L‖": "stream_change", "‖g_L‖": "gradient_change", "‖g_L‖/‖e‖": "per_error_change"}
    return {f"{what} ÷ init": number(over[name]["mean"]) + n[name] for what, name in headings.items()}


def over_runs(
    runs: pl.DataFrame, readings: Readings, measure: Callable[[Readings, EvidenceLine], dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Mean, spread and n over the runs of each number, each run being one seed; a seed that counts twice is refused."""
    seeds = runs["seed"].drop_nulls()
    if seeds.n_unique() < seeds.len():
        raise SondeError(
            f"several runs of one seed would be averaged ({', '.join(runs['run'])}): keep one with --only key=value"
        )
    measured = [measure(readings, run) for run in runs.iter_rows(named=True)]
    rows = pl.DataFrame(
        [(name, value, not math.isnan(value)) for numbers in measured for name, value in numbers.items()],
        schema={"name": pl.String, "value": pl.Float64, "defined": pl.Boolean},
        orient="row",
    )
    found = over_seeds(rows, "name").with_columns(pl.col("mean").fill_null(math.nan))
    return {row["name"]: row for row in found.iter_rows(named=True)}


def own_n(summary: Mapping[str, Any], n: int) -> str:
    """The n of a mean, where fewer than the n runs of its line have a value; one that is undefined says that."""
    return f" (n = {summary['n']})" if 0 < summary["n"] < n else ""


def means(over: Mapping[str, Mapping[str, Any]], n: int) -> dict[str, Any]:
    """Every mean by its name, followed by its own n, `name_n`, where that is not n."""
    found: dict[str, Any] = {}
    for name, summary in over.items():
        found[name] = summary["mean"]
        if summary["n"] != n:
            found[f"{name}_n"] = summary["n"]
    return found


EXAMPLE = "write key=value, for example --set model.L=10"


class UnknownKey(SondeError):
    """No configuration has the key."""


@dataclass(frozen=True)
class Setting:
    """A key and the values it is given, each in turn; `adds` keeps what there is beside them."""

    key: str
    values: tuple[Any, ...]
    adds: bool = False


def narrowed(configs: Iterable[RunConfig], wanted: Mapping[str, Any]) -> list[RunConfig]:
    """The configurations whose values equal the wanted; `variant` stands for the network's variant."""
    described = ((one, keys(one) | {"variant": getattr(one.model, "variant", None)}) for one in configs)
    return only(described, wanted)


def settings(words: Sequence[str]) -> list[Setting]:
    """`key=value`, `key=value,value` and `key+=value`; of `=` for one key the last counts."""
    by_key: dict[tuple[str, object], Setting] = {}
    for position, word in enumerate(words):
        key, equals, text = word.partition("=")
        adds = key.endswith("+")
        key = key.removesuffix("+")
        if not equals or not key:
            raise SondeError(f"--set {word!r}: {EXAMPLE}")
        values = tuple(_value(part) for part in _split(text))
        by_key[key, position if adds else None] = Setting(key, values, adds)
    return list(by_key.values())


def swept(trees: Iterable[_Tree], wanted: Sequence[Setting]) -> list[RunConfig]:
    """Every configuration under every combination of the settings it has a key for; a key that none has is an error.

    The trees have every option.  What comes out twice is one run.
    """
    groups = in_groups(trees, wanted).values()
    return list({config.id: config for group in groups for config in group}.values())


def in_groups(trees: Iterable[_Tree], wanted: Sequence[Setting]) -> dict[str, list[RunConfig]]:
    """The same, by the values that are swept, `model.d=32, optimiser.lr=0.001`: runs of two groups are never averaged.

    Rules are told apart within a group, for that is what studies do.
    """
    if any(setting.key == "seed" for setting in wanted):
        raise SondeError("--set seed=…: choose seeds with --seeds")
    given = [[(setting.key, value) for value in setting.values] for setting in wanted if not setting.adds]
    telling = {setting.key for setting in wanted if len(setting.values) > 1 and setting.key != "rule"}
    present: set[str] = set()
    labelled = [
        (_label(chosen, telling), _with(tree, dict(chosen), present)) for tree in trees for chosen in product(*given)
    ]
    for setting in wanted:
        if setting.adds:
            labelled = list(_with_more(labelled, setting))
        if setting.key not in present:
            raise UnknownKey(f"unknown key {setting.key!r}: {nearest(setting.key, present)}")
    groups: dict[str, dict[str, RunConfig]] = {}
    for label, tree in labelled:
        config = parse(tree)
        groups.setdefault(label, {}).setdefault(config.id, config)
    return {label: list(configs.values()) for label, configs in groups.items()}


def _label(chosen: Iterable[tuple[str, Any]], telling: Collection[str]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in chosen if key in telling)


def _with(tree: _Tree, changes: dict[str, Any], present: set[str]) -> _Tree:
    """Parts are chosen before their options are set."""
    tree = changed(tree, {key: value for key, value in changes.items() if key in SECTIONS})
    has = options(tree)
    present |= has
    return changed(tree, {key: v for key, v in changes.items() if key not in SECTIONS and key in has})


def _with_more(labelled: Sequence[tuple[str, _Tree]], setting: Setting) -> Iterator[tuple[str, _Tree]]:
    part, _, option = setting.key.partition(".")
    for label, tree in labelled:
        there = tree.get(part, {})
        there = there.get(option) if option and isinstance(there, Mapping) else there
        if isinstance(there, list):
            more = [value for value in setting.values if value not in there]
            yield label, changed(tree, {setting.key: [*there, *more]})
            continue
        yield label, tree
        if setting.key in options(tree):
            for value in setting.values:
                added = "" if setting.key == "rule" else _label([(setting.key, value)], [setting.key])
                yield ", ".join(part for part in (label, added) if part), changed(tree, {setting.key: value})


def _split(text: str) -> list[str]:
    """At commas that stand outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "[{(") - (sign in ")}]")
        if sign == "," and not quoted and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _value(text: str) -> Any:
    """JSON where it is JSON, else text; in a list, words need no quotes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        inside = text.strip()
        if inside.startswith("[") and inside.endswith("]"):
            return [_value(part.strip()) for part in _split(inside[1:-1])]
        return text
