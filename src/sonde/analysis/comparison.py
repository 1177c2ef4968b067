"""Paired comparison of the levels of one factor, over runs that differ in nothing else but the seed."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from sonde.analysis.runs import (
    Level,
    by_seed,
    choices,
    complete,
    flat_configs,
    levels,
    made_with,
    options_of,
    refuse_none,
    several_versions,
)
from sonde.core import html_parts
from sonde.core.errors import SondeError, nearest
from sonde.core.formatting import number, signed
from sonde.core.run_ids import Flat, differing, identity, shown, without
from sonde.core.seed_statistics import (
    Interval,
    Summary,
    cannot_decide,
    paired,
    possible_part,
    summarise,
    summarise_known,
    t_interval,
)
from sonde.metrics import TRAINED, base_of, label_of
from sonde.metrics.rows import Reading, undefined
from sonde.store.readings import Readings
from sonde.store.run import Run, Runs

_DIGITS = 4  # of a mean
COMPARISON_SPREAD = "s.d.: sample standard deviation over seeds (ddof 1). Interval: Student's t over seeds."

Table = tuple[dict[str, str], list[list[str]]]
"""Headings, each with its alignment (left or right), and rows."""


@dataclass(frozen=True, kw_only=True)
class LevelGroup:
    """The runs of one level, one per seed."""

    level: Level
    runs: dict[int, str]  # by seed
    epochs: dict[int, int]  # at which each was read
    readings: dict[int, Reading]
    summary: Summary

    @property
    def values(self) -> dict[int, float]:
        """Seed → value; NaN where undefined."""
        return {seed: reading.value for seed, reading in self.readings.items()}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """level − baseline over the seeds that have both, with its interval."""

    level: str
    baseline: str
    by_seed: dict[int, float]
    without: dict[int, str]  # seeds that have no difference, and why
    summary: Summary
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The groups of a comparison with their runs, and the differences from the baseline."""

    factor: str
    metric: str
    layer: int | None
    shared: Flat  # what all the runs have in common
    matched: bool
    differing: dict[str, dict[str, int]]  # fields besides the factor, empty when matched
    groups: list[LevelGroup]
    differences: list[Difference]
    left_out: dict[str, str]
    made_with: dict[str, list[str]]  # version and commit → runs

    def title(self) -> str:
        """What was compared, where it was read, and whether the runs were matched."""
        where = "" if self.layer is None else f" at layer {self.layer}"
        epochs = sorted({epoch for group in self.groups for epoch in group.epochs.values()})
        when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {', '.join(map(str, epochs))}"
        mark = "" if self.matched else " — UNMATCHED"
        return f"{self.metric}{where} by {self.factor}, {when}{mark}"

    def level_table(self) -> Table:
        """Level, n, mean, sample standard deviation, epoch and seeds, the baseline first."""
        numbers = dict.fromkeys(("n", "mean", "s.d.", "epoch"), "right")
        rows = [
            [
                group.level.label,
                str(group.summary.n),
                number(group.summary.mean, _DIGITS),
                number(group.summary.std, 2),
                ", ".join(map(str, sorted(set(group.epochs.values())))),
                ", ".join(map(str, group.runs)),
            ]
            for group in self.groups
        ]
        return {self.factor: "left", **numbers, "seeds": "left"}, rows

    def difference_table(self) -> Table:
        """Which difference, pairs, mean, interval and seeds."""
        columns = {"difference": "left", "n": "right", "mean": "right", "95 % interval": "left", "seeds": "left"}
        rows = []
        for one in self.differences:
            seeds = ", ".join(map(str, one.by_seed)) or "none"
            name = f"{one.level} − {one.baseline}"
            rows.append([name, str(one.summary.n), *self.difference_cells(one), seeds])
        return columns, rows

    def difference_cells(self, one: Difference) -> list[str]:
        """A difference and its interval, or that the seeds are too few for one."""
        metric = TRAINED.get(base_of(self.metric))
        possible = math.inf if metric is None else metric.bounds[1] - metric.bounds[0]
        between = "[{}, {}]".format(*map(signed, possible_part(one.interval, possible)))
        if one.interval.reason:
            between = "undefined"
        elif words := cannot_decide(one.interval, one.summary.n, possible):
            between = words
        return [signed(one.summary.mean), between]

    def notes(self) -> list[str]:
        """What else differs, undefined values and intervals, unpaired seeds, and which code made the runs."""
        said = []
        if not self.matched:
            fields = (f"{key} ({', '.join(values)})" for key, values in self.differing.items())
            said.append(f"unmatched: the runs also differ in {'; '.join(fields)}")
        for group in self.groups:
            for seed, reading in group.readings.items():
                if reading.reason:
                    said.append(f"{group.level.label}, seed {seed}: undefined: {reading.reason}")
        for difference in self.differences:
            name = f"{difference.level} − {difference.baseline}"
            said += [f"{name}: seed {seed} is not paired: {why}" for seed, why in difference.without.items()]
            if difference.interval.reason:
                said.append(f"{name}: interval undefined: {difference.interval.reason}")
        made = several_versions(self.made_with)
        return [*said, made] if made else said

    def __repr__(self) -> str:
        means = (
            f"{group.level.label} {number(group.summary.mean, _DIGITS)} (n = {group.summary.n})"
            for group in self.groups
        )
        return f"<{self.title()}: {', '.join(means)}>"

    def _repr_html_(self) -> str:
        left_out = [f"left out: {run} ({why})" for run, why in self.left_out.items()]
        return (
            html_parts.table(*self.level_table(), self.title())
            + html_parts.table(*self.difference_table(), "Paired by seed")
            + html_parts.listing(self.notes() + left_out)
            + html_parts.small(COMPARISON_SPREAD)
        )


def compare(
    stored: Runs,
    *,
    factor: str = "rule",
    metric: str = "test_acc",
    layer: int | None = None,
    epoch: int | None = None,
    baseline: str | None = None,
    unmatched: bool = False,
) -> Comparison:
    """Compare the levels of a factor, paired by seed, at one epoch (default: the last).

    Runs that differ in anything but the factor and the seed are refused by the names of the fields;
    `unmatched` takes them and marks the result.
    """
    runs, left_out = complete(stored)
    refuse_none(runs, left_out)
    _refuse_unknown(metric, stored.rows.filter(pl.col("run").is_in([run.id for run in runs])))
    flats = flat_configs(runs)
    present = levels(list(flats.values()), factor)
    if len(present) < 2:
        (only,) = present.values()
        varying = ", ".join(differing(without(flat, ("seed",)) for flat in flats.values())) or "nothing"
        raise SondeError(
            f"--factor {factor}: every run has {only.label}, so there is nothing to compare; "
            f"the runs differ in {varying}"
        )
    elsewhere = differing(without(flat, (factor, "seed")) for flat in flats.values())
    if elsewhere and not unmatched:
        raise SondeError(_mismatch(factor, elsewhere, list(flats.values())))
    epochs = _epochs(runs, epoch)
    readings = _readings(stored.rows, epochs, metric=metric, layer=layer)
    groups = []
    for key, level in present.items():
        members = [run for run in runs if identity(options_of(flats[run.id], factor)) == key]
        groups.append(_group(level, by_seed(members, level.label), epochs, readings))
    base = _baseline(groups, factor, baseline)
    groups.sort(key=lambda group: group is not base)
    return Comparison(
        factor=factor,
        metric=metric,
        layer=layer,
        shared=_shared(list(flats.values())),
        matched=not elsewhere,
        differing=elsewhere,
        groups=groups,
        differences=[_difference(group, base) for group in groups if group is not base],
        left_out=left_out,
        made_with=made_with(runs),
    )


def _shared(flats: Sequence[Flat]) -> Flat:
    varying = differing(flats)
    return {key: value for key, value in flats[0].items() if key not in varying and key != "seed"}


def _refuse_unknown(metric: str, rows: pl.DataFrame) -> None:
    names = sorted(rows["metric"].unique())
    if metric in names:
        return
    word, bare = metric.casefold(), [name for name in names if "[" not in name and "/" not in name]
    labelled = [name for name in bare if word in label_of(name).casefold()]
    close = (
        f"did you mean {' or '.join(map(repr, labelled[:3]))}?" if labelled else nearest(metric, names, "sonde explain")
    )
    raise SondeError(f"--metric {metric}: no run has it: {close}")


_MOST_KEYS = 3  # keys that an error message names
_FIRST = ("task", "model")  # keys that a reader knows


def _mismatch(factor: str, fields: dict[str, dict[str, int]], flats: Sequence[Flat]) -> str:
    def words(counts: dict[str, int]) -> str:
        return " and ".join(f"{value} in {n} run{'s' if n > 1 else ''}" for value, n in counts.items())

    chosen = _agreeing(factor, list(fields), flats)
    splitting = dict.fromkeys([*(chosen or {}), *fields])
    named = "; ".join(f"{key} is {words(fields[key])}" for key in list(splitting)[:_MOST_KEYS])
    rest = len(fields) - _MOST_KEYS
    more = f"; and {rest} more key{'s' * (rest != 1)}" if rest > 0 else ""
    fix = f"No two of them differ in {factor} alone, so train what is missing"
    if chosen:
        fix = f"Keep runs that agree with {' '.join(as_option(key, value) for key, value in chosen.items())}"
    return (
        f"the runs differ in more than {factor} and the seed: {named}{more}. {fix}, "
        "or compare them nonetheless with --unmatched, which marks the output"
    )


def _agreeing(factor: str, fields: Sequence[str], flats: Sequence[Flat]) -> dict[str, Any] | None:
    """The fewest keys, with values, that keep the largest comparable group of runs; None where there is none."""
    alike: dict[str, list[Flat]] = {}
    for flat in flats:
        alike.setdefault(identity(without(flat, (factor, "seed"))), []).append(flat)
    comparable = [group for group in alike.values() if len(levels(group, factor)) > 1]
    if not comparable:
        return None
    group = max(comparable, key=len)
    ours = group[0]
    others = [flat for flat in flats if not any(flat is one for one in group)]
    keys = sorted((key for key in fields if key in ours), key=lambda key: (key not in _FIRST, key.count("."), key))
    chosen: dict[str, Any] = {}
    while others:
        kept_by = {key: [flat for flat in others if key in flat and flat[key] == ours[key]] for key in keys}
        best = min(kept_by, key=lambda key: len(kept_by[key]), default=None)
        if best is None or len(kept_by[best]) == len(others):
            return None  # --only cannot tell them apart
        chosen[best], others = ours[best], kept_by[best]
    return chosen


def as_option(key: str, value: Any) -> str:
    """A choice as an option for a shell; text that JSON would read as another type is quoted."""
    text = shown(value)
    if isinstance(value, str) and choices([f"{key}={text}"])[key] != value:
        text = json.dumps(value)
    return f"--only {shlex.quote(f'{key}={text}')}"


def _epochs(runs: Sequence[Run], epoch: int | None) -> dict[str, int]:
    """Run id → the epoch to read: the one that was asked for, or the last."""
    ends = {run.id: run.config["epochs"] if run.manifest.epoch is None else run.manifest.epoch for run in runs}
    if epoch is None:
        return ends
    if not all(0 <= epoch <= end for end in ends.values()):
        least = min(ends.values())
        raise SondeError(f"--epoch {epoch}: a run ends at epoch {least}; choose one from 0 to {least}")
    return dict.fromkeys(ends, epoch)


def _readings(rows: pl.DataFrame, epochs: Mapping[str, int], *, metric: str, layer: int | None) -> dict[str, Reading]:
    """Run id → its reading at its epoch."""
    of_metric = rows.filter(pl.col("run").is_in(list(epochs)), metric=metric)
    there = _of_layer(of_metric, metric, layer)
    readings = Readings(there)
    counts = {(run, epoch): n for run, epoch, n in there.group_by("run", "epoch").len().iter_rows()}
    found = {}
    for run, epoch in epochs.items():
        if (several := counts.get((run, epoch), 0)) > 1:
            raise SondeError(f"{metric} has {several} values in epoch {epoch}: choose a metric with one an epoch")
        reading = readings.at(metric, epoch=epoch).get(run)
        found[run] = reading or undefined(metric, f"{metric} was not measured at epoch {epoch}")
    return found


def _of_layer(rows: pl.DataFrame, metric: str, layer: int | None) -> pl.DataFrame:
    layers = sorted(rows["layer"].drop_nulls().unique())
    if layer is None:
        if layers:
            raise SondeError(
                f"{metric} is measured at every layer: choose one with --layer, {layers[0]} … {layers[-1]}"
            )
        return rows
    if not layers:
        raise SondeError(f"{metric} is measured of the whole network: leave out --layer")
    if layer not in layers:
        raise SondeError(f"--layer {layer}: {metric} has the layers {', '.join(map(str, layers))}")
    return rows.filter(layer=layer)


def _group(
    level: Level, runs: Mapping[int, Run], epochs: Mapping[str, int], readings: Mapping[str, Reading]
) -> LevelGroup:
    of_level = {seed: readings[run.id] for seed, run in runs.items()}
    return LevelGroup(
        level=level,
        runs={seed: run.id for seed, run in runs.items()},
        epochs={seed: epochs[run.id] for seed, run in runs.items()},
        readings=of_level,
        summary=summarise_known(list(of_level.values())),
    )


def _baseline(groups: Sequence[LevelGroup], factor: str, wanted: str | None) -> LevelGroup:
    labels = [group.level.label for group in groups]
    if wanted is None:
        return next((g for g in groups if factor == "rule" and g.level.name == "bp"), groups[0])
    named = [group for group in groups if wanted in (group.level.label, group.level.name)]
    exact = [group for group in named if group.level.label == wanted] or named
    if len(exact) == 1:
        return exact[0]
    if exact:
        several = " or ".join(repr(group.level.label) for group in exact)
        raise SondeError(f"--baseline {wanted}: there are several, choose {several}")
    raise SondeError(f"--baseline {wanted}: no level of {factor} has that name: {nearest(wanted, labels)}")


def _difference(group: LevelGroup, base: LevelGroup) -> Difference:
    pairs = paired(group.values, base.values)
    reason = "no seed has a value on both sides"
    return Difference(
        level=group.level.label,
        baseline=base.level.label,
        by_seed=pairs.differences,
        without=pairs.without,
        summary=summarise(pairs.differences.values(), reason),
        interval=t_interval(pairs.differences.values()),
    )
