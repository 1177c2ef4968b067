"""Stored runs as readers use them: by recipe and by seed, those that ended, those that `--only` keeps; as tables.

A recipe is a configuration without its seed.  A flat configuration has dotted keys (`sonde.core.run_ids`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from sonde.analysis.evidence import RUNS_SCHEMA
from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import Flat, belongs, differing, flatten, identity, shown
from sonde.store.run import NO_CONFIGURATION, Run, Runs
from sonde.store.schemas import ABOUT

_T = TypeVar("_T")


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Recipe:
    """Runs that differ in nothing but the seed."""

    flat: Flat  # without the seed
    runs: list[Run]


def by_recipe(runs: Iterable[Run]) -> list[Recipe]:
    """Trained runs by recipe, in the order in which they come."""
    by_key: dict[tuple[str, str], Recipe] = {}
    by_flat: dict[str, Recipe] = {}
    for run in runs:
        key = run.recipe, identity(run.about.get("data") or {})
        if key not in by_key:
            by_key[key] = by_flat.setdefault(identity(run.flat), Recipe(dict(run.flat), []))
        by_key[key].runs.append(run)
    recipes = list(by_flat.values())
    _fill_in_defaults(recipes)
    return recipes


def flat_configs(runs: Iterable[Run]) -> dict[str, Flat]:
    """Run id → its flat configuration, with its seed."""
    return {run.id: recipe.flat | {"seed": run.seed} for recipe in by_recipe(runs) for run in recipe.runs}


def _fill_in_defaults(recipes: Sequence[Recipe]) -> None:
    """Where one run has an option that older runs lack or others left at its default, give those the default."""
    used = {key for recipe in recipes for key in recipe.flat}
    younger: dict[tuple[str, str | None], Any] = {}
    for run in (run for recipe in recipes for run in recipe.runs):
        for key, default in run.defaults.items():
            if key in used:
                section = run.config.get(key.partition(".")[0])
                younger[key, section.get("name") if isinstance(section, dict) else None] = default
    for recipe in recipes:
        for (key, name), default in younger.items():
            part = key.partition(".")[0]
            if recipe.flat.get(part, recipe.flat.get(f"{part}.name")) == name:
                recipe.flat.setdefault(key, default)


# ── levels of a factor ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Level:
    """One value of a factor, which is a key or a section; for a section, all its options."""

    name: str
    label: str  # the name, and the options that tell it from another level of that name
    options: Flat


def levels(configurations: Sequence[Flat], factor: str) -> dict[str, Level]:
    """The levels present, by the identity of their options: names in alphabetical order, numbers in theirs."""
    keys = {key for flat in configurations for key in flat}
    factors = (keys | {key.rpartition(".")[0] for key in keys}) - {"", "seed"}
    if factor not in factors:
        what = "the seed pairs runs and is no factor" if factor == "seed" else f"unknown factor {factor!r}"
        raise SondeError(f"--factor {factor}: {what}: {nearest(factor, factors)}")
    present = {identity(options := options_of(flat, factor)): options for flat in configurations}
    ordered = sorted(present.values(), key=lambda options: value_order(options.get(factor)))
    return {identity(options): _level(options, factor, ordered) for options in ordered}


def options_of(flat: Flat, factor: str) -> Flat:
    """The part of a configuration that the factor stands for."""
    return {key: value for key, value in flat.items() if belongs(key, factor)}


def value_order(value: Any) -> tuple[bool, float, str]:
    """A key that sorts numbers in their order, before texts in theirs."""
    number = isinstance(value, int | float)
    return not number, value if number else 0.0, shown(value)


def _level(options: Flat, factor: str, present: Sequence[Flat]) -> Level:
    name = shown(options[factor]) if factor in options else factor if options else "absent"
    namesakes = [other for other in present if other.get(factor) == options.get(factor)]
    parts = [
        f"{key.removeprefix(factor + '.')} = {shown(options[key]) if key in options else 'absent'}"
        for key in differing(namesakes)
        if key != factor
    ]
    return Level(name, f"{name} ({', '.join(parts)})" if parts else name, options)


# ── `--only key=value` ──────────────────────────────────────────────────────────────────────────────
def choices(words: Sequence[str]) -> dict[str, Any]:
    """What `--only key=value` asks for; values are read as JSON where they are JSON, else as text."""
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise SondeError(f"--only {word!r}: write key=value, for example --only model.L=10")
        try:
            pairs[key] = json.loads(text)
        except (ValueError, RecursionError):
            pairs[key] = text
    return pairs


def only(configured: Iterable[tuple[_T, Flat]], wanted: Mapping[str, Any]) -> list[_T]:
    """Those whose values equal the wanted; a key or a value that none of them has is an error."""
    kept = list(configured)
    known = {key for _, flat in kept for key in flat}
    for key, value in wanted.items():
        if key not in known:
            raise SondeError(f"--only {key}=…: unknown key {key!r}: {nearest(key, known)}")
        present = sorted({shown(flat[key]) for _, flat in kept if key in flat})
        kept = [(one, flat) for one, flat in kept if key in flat and flat[key] == value]
        if not kept:
            there = ", ".join(present) or "no such key among the runs kept so far"
            raise SondeError(f"--only {key}={shown(value)}: no run has that value; there are {there}")
    return [one for one, _ in kept]


def keep(stored: Runs, wanted: Mapping[str, Any]) -> Runs:
    """The stored runs whose values equal the wanted; `variant` stands for the network's variant."""
    if not wanted:
        return stored
    flats = flat_configs(stored.runs)
    runs = only(((run, flats[run.id] | {"variant": run.about["variant"]}) for run in stored.runs), wanted)
    rows = stored.rows.filter(stored.rows["run"].is_in([run.id for run in runs]))
    return Runs(rows, runs, broken=stored.broken)


# ── runs that ended ─────────────────────────────────────────────────────────────────────────────────
def complete(stored: Runs) -> tuple[list[Run], dict[str, str]]:
    """The runs that came to their end, and the others: run → why it is left out."""
    ended = [run for run in stored.runs if run.manifest.state == "complete"]
    left_out = {
        run.id: "; ".join(part for part in (f"it is {run.status.state}", run.status.why) if part)
        for run in stored.runs
        if run.manifest.state != "complete"
    }
    return ended, left_out | {run.id: NO_CONFIGURATION for run in stored.watched} | stored.broken


def refuse_none(runs: Sequence[Run], left_out: Mapping[str, str]) -> None:
    """Raise where no run ended."""
    if not runs:
        why = "; ".join(f"{run}: {reason}" for run, reason in left_out.items()) or "it is empty"
        raise SondeError(f"the store holds no complete run ({why}): finish one with `sonde run` or `sonde train`")


def by_seed(runs: Iterable[Run], label: str) -> dict[int, Run]:
    """Runs by seed, in order.  Two runs of one seed raise an error that says in what they differ."""
    one_a_seed: dict[int, Run] = {}
    for run in runs:
        twin = one_a_seed.setdefault(run.seed, run)
        if twin is not run:
            fields = differing(flat_configs((twin, run)).values())
            if fields:
                apart, fix = ", ".join(fields), "keep one of them with --only key=value"
            else:
                apart, fix = f"nothing but their id: {twin.id}, {run.id}", "move the copy out of the store"
            raise SondeError(
                f"{label} has several runs of seed {run.config['seed']}, which differ in {apart}: "
                f"a seed counts once; {fix}"
            )
    return dict(sorted(one_a_seed.items()))


CLASSES = {"cifar10": 10, "digits": 10, "parity": 2}
"""The number of classes of tasks that have no option for it."""


def evidence_lines(runs: Sequence[Run]) -> pl.DataFrame:
    """One line per run, as `Evidence.runs` has them."""
    return pl.DataFrame([_line(run) for run in runs], schema=RUNS_SCHEMA)


def _line(run: Run) -> dict[str, Any]:
    """One line of `Evidence.runs`.  A plugin's option of a known name but another type is left out."""
    config, model, rule = run.config, run.config["model"], run.config["rule"]
    reader = "cls" if model["name"] == "vit_mini" else "flat"  # of 0.1.0, which said nothing
    width = run.about["width"]
    return {key: run.about[key] for key in ABOUT} | {
        "width": None if width is None else int(width),
        "run": run.id,
        "model": model["name"],
        "rule": rule["name"],
        "task": config["task"]["name"],
        "out_ln": _if(bool, model.get("out_ln")),
        "seed": config["seed"],
        "scale": config["scale"],
        "epochs": config["epochs"],
        "batch": config["batch_size"],
        "lr": _if(float, config["optimiser"].get("lr")),
        "model_alpha": _if(float, model.get("alpha")),
        "input_norm": _if(str, rule.get("input_norm")),
        "reader": _if(str, run.about.get("reader", reader)),
        "output": _if(str, model.get("output", "relu")) if model["name"] in ("plain_mlp", "res_mlp") else None,
        "classes": _if(int, config["task"].get("classes", CLASSES.get(config["task"]["name"]))),
    }


def _if(kind: type, value: Any) -> Any:
    """The value where it is of that type; a whole number is a number."""
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    return value if type(value) is kind else None


# ── the code that made them ─────────────────────────────────────────────────────────────────────────
_NOT_RECORDED = "not recorded"
_UNCOMMITTED = "uncommitted changes"


def made_with(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Version and commit as text → the runs; a run that several versions trained names them in order."""
    found: dict[str, list[str]] = {}
    for run in runs:
        sessions = dict.fromkeys(_maker(session.get("environment") or {}) for session in run.manifest.sessions)
        found.setdefault(", then ".join(sessions) or _NOT_RECORDED, []).append(run.id)
    return found


def several_versions(made: Mapping[str, list[str]]) -> str | None:
    """A notice where several versions made the runs, or one with uncommitted changes; else None."""
    if len(made) > 1:
        counted = "; ".join(f"{maker} ({len(runs)} run{'s' * (len(runs) > 1)})" for maker, runs in made.items())
        return f"the runs were not all made with the same code: {counted}"
    for maker in made:
        if _UNCOMMITTED in maker:
            return f"made with {maker}: which changes is not recorded, so the code may differ between runs"
    return None


def _maker(environment: Mapping[str, Any]) -> str:
    packages, git = environment.get("packages") or {}, environment.get("git")
    if not packages:
        return _NOT_RECORDED
    commit = "no commit"
    if git:
        commit = f"commit {str(git.get('commit'))[:10]}{f' with {_UNCOMMITTED}' if git.get('dirty') else ''}"
    return f"sonde {packages.get('sonde', '?')} ({commit}), torch {packages.get('torch', '?')}"


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────
_ALWAYS = ("model", "rule", "task", "seed")
_LARGEST = 2**63  # whole number in a column
OVERVIEW_METRICS = ("test_acc", "test_loss", "train_loss")  # the metrics that an overview shows
_MOST_KEYS = 3  # columns for keys in which runs differ


def frame(stored: Runs) -> pl.DataFrame:
    """Every row with its run's model, rule, task, seed and state, and each key in which the runs differ."""
    return with_columns_of_runs(stored.rows, run_table(stored))


def run_table(stored: Runs) -> pl.DataFrame:
    """One line per run: model, rule, task, seed, state, and the dotted keys in which runs differ.

    A watched run has no configuration: its model has a name, the rest is null.
    """
    flats = flat_configs(stored.runs)
    keys = [key for key in differing(flats.values()) if key not in _ALWAYS]
    return _table(stored, flats | {run.id: {"model": run.about["model"]} for run in stored.watched}, keys)


def whole_run_table(stored: Runs) -> pl.DataFrame:
    """One line per run with its whole configuration; of a watched run, what is known of its model and loop."""
    flats = {run.id: run_settings(run) for run in stored.every}
    keys = dict.fromkeys(key for flat in flats.values() for key in flat if key not in _ALWAYS)
    return _table(stored, flats, list(keys))


def run_settings(run: Run) -> Flat:
    """All that a run was told, defaults too; of a watched run, what is known of its model and loop."""
    if run.is_watched:
        return flatten({key: value for key, value in run.about.items() if value is not None})
    return flatten({**run.complete_config, "data": run.about.get("data") or {}})


def _table(stored: Runs, flats: Mapping[str, Flat], keys: Sequence[str]) -> pl.DataFrame:
    runs = stored.every
    return pl.DataFrame(
        [
            pl.Series("run", [run.id for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in _ALWAYS),
            pl.Series("state", [run.status.state for run in runs], dtype=pl.String),
            *(_column(key, [flats[run.id].get(key) for run in runs]) for key in keys),
        ]
    )


def with_columns_of_runs(rows: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The rows in their order, with the columns of their run before what was measured."""
    joined = rows.join(runs, on="run", how="left", maintain_order="left")
    return joined.select(*runs.columns, *(name for name in rows.columns if name != "run"))


def _column(key: str, values: list[Any]) -> pl.Series:
    """A column of numbers, booleans or text; where types are mixed, each value as `--only` writes it."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and all(abs(value) < _LARGEST for value in values if isinstance(value, int)):
        whole = pl.Int64 if kinds == {int} or key == "seed" else pl.Float64
        return pl.Series(key, values, dtype=whole if kinds else None)
    if kinds in ({bool}, {str}):
        return pl.Series(key, values)
    return pl.Series(key, [None if value is None else shown(value) for value in values], dtype=pl.String)


def untold(stored: Runs) -> dict[str, dict[str, str]]:
    """The keys in which runs of one label and task differ, with the value of each run.

    Seeds and epochs have columns of their own.  Of keys that tell the same runs apart the first is taken; those of the
    probes come last.
    """
    present = by_recipe(stored.runs)
    by_label: dict[tuple[str, object], list[dict[str, Any]]] = {}
    for recipe in present:
        by_label.setdefault((recipe.runs[0].label, recipe.flat.get("task")), []).append(recipe.flat)
    varying = {key for flats in by_label.values() for key in differing(flats)} - {"epochs", "scale", "task"}
    found: dict[tuple[str, ...], str] = {}
    for key in sorted(varying, key=lambda key: (key.startswith(("probes", "log")), key.count("."), key)):
        values = [recipe.flat.get(key, "–") for recipe in present]
        if not any(isinstance(value, list) for value in values):
            order = {value: place for place, value in enumerate(dict.fromkeys(map(shown, values)))}
            found.setdefault(tuple(str(order[shown(value)]) for value in values), key)
    return {
        key: {run.id: shown(recipe.flat.get(key, "–")) for recipe in present for run in recipe.runs}
        for key in list(found.values())[:_MOST_KEYS]
    }


def last_metrics(stored: Runs) -> dict[str, dict[str, float]]:
    """By run: metric of the whole network → its last value, NaN where undefined."""
    trained = pl.col("run").is_in([run.id for run in stored.runs])
    scalars = stored.rows.filter(pl.col("layer").is_null() & trained)
    last = scalars.group_by("run", "metric", maintain_order=True).agg(pl.col("value").sort_by("epoch", "step").last())
    metrics: dict[str, dict[str, float]] = {run.id: {} for run in stored.runs}
    for run, metric, value in last.iter_rows():
        metrics[run][metric] = value
    return metrics


def last_value(value: float | None) -> str:
    """A value in four digits; a dash where it was never measured."""
    if value is None:
        return "–"
    return "undefined" if value != value else f"{value:.4g}"
