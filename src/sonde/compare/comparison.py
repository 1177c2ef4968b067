"""Paired comparison: levels of one factor, in runs that agree in everything else but the seed."""

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.compare.configurations import Flat, all_described, complete, differing, identity, without
from sonde.compare.factor import Level, levels, options_of
from sonde.compare.makers import made_with
from sonde.compare.reading import Value, values
from sonde.errors import SondeError, nearest
from sonde.statistics import Interval, Summary, paired, summarise, t_interval
from sonde.store.load import Run, Runs


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one level, one per seed."""

    level: Level
    values: dict[int, Value]  # by seed
    summary: Summary

    @property
    def defined(self) -> dict[int, float]:
        return {seed: value.value for seed, value in self.values.items()}


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
    """What was compared, every group with its n and runs, and the differences against the baseline."""

    factor: str
    metric: str
    layer: int | None
    shared: Flat  # what all the runs have in common
    matched: bool
    differing: dict[str, dict[str, int]]  # fields besides the factor, empty when matched
    groups: list[Group]
    differences: list[Difference]
    left_out: dict[str, str]
    made_with: dict[str, list[str]]  # version and commit → runs


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
    if not runs:
        why = "; ".join(f"{run}: {reason}" for run, reason in left_out.items()) or "it is empty"
        raise SondeError(
            f"the store holds no complete run ({why}): finish one with `sonde run` or `sonde train`"
        )
    flats = all_described(runs)
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
        raise SondeError(_mismatch(factor, elsewhere))
    read = values(stored.rows, runs, metric=metric, layer=layer, epoch=epoch)
    groups = [
        _group(
            level, [run for run in runs if identity(options_of(flats[run.id], factor)) == key], flats, read
        )
        for key, level in present.items()
    ]
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


def _mismatch(factor: str, fields: dict[str, dict[str, int]]) -> str:
    def words(counts: dict[str, int]) -> str:
        return " and ".join(f"{value} in {n} run{'s' if n > 1 else ''}" for value, n in counts.items())

    named = "; ".join(f"{key} is {words(counts)}" for key, counts in fields.items())
    key, counts = next(iter(fields.items()))
    value = next((value for value in counts if value != "absent"), "…")
    return (
        f"the runs differ in more than {factor} and the seed: {named}. Keep runs that agree with --only {key}={value}, "
        "or compare them nonetheless with --unmatched, which marks the output"
    )


def _group(level: Level, runs: Sequence[Run], flats: dict[str, Flat], read: dict[str, Value]) -> Group:
    by_seed: dict[int, Value] = {}
    for run in runs:
        value = read[run.id]
        if value.seed in by_seed:
            twins = (flats[by_seed[value.seed].run], flats[run.id])
            raise SondeError(
                f"{level.label} has several runs of seed {value.seed}, which differ in {', '.join(differing(twins))}: "
                "a seed counts once; keep one of them with --only key=value"
            )
        by_seed[value.seed] = value
    by_seed = dict(sorted(by_seed.items()))
    reason = next((value.reason for value in by_seed.values() if value.reason), "no value is defined")
    return Group(level=level, values=by_seed, summary=summarise((v.value for v in by_seed.values()), reason))


def _baseline(groups: Sequence[Group], factor: str, wanted: str | None) -> Group:
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


def _difference(group: Group, base: Group) -> Difference:
    pairs = paired(group.defined, base.defined)
    reason = "no seed has a value on both sides"
    return Difference(
        level=group.level.label,
        baseline=base.level.label,
        by_seed=pairs.differences,
        without=pairs.without,
        summary=summarise(pairs.differences.values(), reason),
        interval=t_interval(pairs.differences.values()),
    )
