"""Published numbers as claims, each compared with stored runs: `sonde reproduce`.

A file of claims is TOML.  A claim names the runs that answer it as `sonde run` does: a study, its scale, the runs that
`only` keeps and the keys that `set` changes.

    [[claim]]
    source = "Doe et al. 2026, table 2"
    study = "audit"
    scale = "full"
    only = {rule = "dfa"}
    set = {"rule.penalty" = 0.01}
    metric = "test_acc"     # after the last epoch
    value = 0.36
    std = 0.002             # sample standard deviation over n seeds, if it is published
    n = 3

`layer` is a number, "top" (h_L) or "deep" (the mean over layers 1 … L−1).  `epoch` is another epoch than the last.
`within` says how far two values may be apart and still count as the same: a difference, or a factor for metrics drawn
on a logarithmic scale.  A claim that Sonde cannot train gives the reason as `missing` in place of a study.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt

from sonde.config import RunConfig, change, to_tree
from sonde.core.errors import SondeError, nearest
from sonde.core.formatting import accuracy, number, signed
from sonde.core.run_ids import run_id, shown
from sonde.core.seed_statistics import Summary, summarise, summarise_known, t_quantile
from sonde.core.validated import validated
from sonde.metrics import SHARE, TRAINED, base_of, label_of, symbol_of
from sonde.metrics.rows import Reading
from sonde.store.folder import recipe_key
from sonde.store.run import Run, Runs
from sonde.studies import STUDIES
from sonde.studies.study import narrowed

Verdict = Literal["reproduced", "contradicted", "undecided", "not run"]
VERDICTS: tuple[Verdict, ...] = ("contradicted", "reproduced", "undecided", "not run")
CONFIDENCE = 0.95
WITHIN_POINTS = 0.03
"""Of a share or a cosine: two values this close count as the same, unless the claim says otherwise."""
WITHIN_FACTOR = 3.0
"""The same as a factor, for metrics on a logarithmic scale."""


@validated
class Claim:
    """A published number, and the runs that answer it."""

    source: str
    metric: str
    value: float
    std: Annotated[float, Ge(0)] | None = None  # over seeds
    n: Annotated[int, Ge(1)] = 1
    study: str | None = None
    scale: Literal["quick", "full"] = "full"
    only: dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    layer: Annotated[int, Ge(0)] | Literal["top", "deep"] | None = None
    epoch: Annotated[int, Ge(0)] | None = None  # None: the last
    within: Annotated[float, Gt(0)] | None = None
    missing: str | None = None  # why Sonde cannot train it

    @property
    def is_log(self) -> bool:
        """Whether values are compared by their ratio."""
        return TRAINED[base_of(self.metric)].scale == "log"

    @property
    def tolerance(self) -> float:
        """How far two values may be apart and still count as the same."""
        return self.within or (WITHIN_FACTOR if self.is_log else WITHIN_POINTS)

    @property
    def setting(self) -> str:
        """The runs in a few words: `audit full, rule=dfa, rule.penalty=0.01`."""
        chosen = (f"{key}={shown(value)}" for key, value in (self.only | self.set).items())
        return ", ".join([f"{self.study} {self.scale}", *chosen]) if self.study else "–"

    @property
    def quantity(self) -> str:
        """What is compared: `cosine, layers 1 … L−1`."""
        place: dict[object, str] = {"top": " at h_L", "deep": ", layers 1 … L−1", None: ""}
        when = "" if self.epoch is None else " at initialisation" if self.epoch == 0 else f", epoch {self.epoch}"
        where = place.get(self.layer, f" at layer {self.layer}")
        return (symbol_of(self.metric) or label_of(self.metric)) + where + when

    def command(self, seeds: Sequence[int]) -> str:
        """The command that trains the runs of these seeds."""
        chosen = [
            f"--{flag} {key}={shown(value)}" for flag in ("only", "set") for key, value in vars(self)[flag].items()
        ]
        return " ".join(
            [f"sonde run {self.study} --scale {self.scale}", *chosen, f"--seeds {','.join(map(str, seeds))}"]
        )


class Answer(NamedTuple):
    """A claim beside what was measured."""

    claim: Claim
    ours: Summary  # the mean is geometric where values are compared by their ratio
    verdict: Verdict
    low: float  # of ours − theirs, or of ours ÷ theirs
    high: float
    why: str  # how the verdict was reached, or what is missing
    runs: tuple[str, ...]
    seeds: tuple[int, ...]

    @property
    def command(self) -> str | None:
        """The command that trains what is missing, seeds too where nothing is decided; None if nothing is missing."""
        if self.claim.study is None or self.verdict not in ("not run", "undecided"):
            return None
        seeds = [seed for seed in STUDIES[self.claim.study].seeds[self.claim.scale] if seed not in self.seeds]
        return self.claim.command(seeds) if seeds else None

    def cells(self) -> list[str]:
        """Verdict, what, where, theirs, ours, difference: a row of a table."""
        claim = self.claim
        theirs = _value(claim, claim.value, claim.std) + (f" ({claim.n})" if claim.n > 1 else "")
        ours = "–" if self.ours.n == 0 else f"{_value(claim, self.ours.mean, self.ours.std)} ({self.ours.n})"
        return [self.verdict, claim.quantity, claim.setting, theirs, ours, self.difference]

    def short_cells(self) -> list[str]:
        """The claim, theirs and ours."""
        _, quantity, setting, theirs, ours, _ = self.cells()
        said = setting.replace(" full", "")
        return [said if self.claim.metric == "test_acc" else f"{said}: {quantity}", theirs, ours]

    @property
    def difference(self) -> str:
        """Ours − theirs in points, or as a factor, with its interval."""
        if self.ours.n == 0:
            return "–"
        apart = _apart(self.claim, self.ours.mean)
        said = [_difference(self.claim, value) for value in (apart, self.low, self.high)]
        return said[0] if math.isnan(self.low) else f"{said[0]} [{said[1]}, {said[2]}]"


def read_claims(path: Path | None = None) -> list[Claim]:
    """The claims of a file, or those that come with Sonde."""
    text = files("sonde.studies").joinpath("claims.toml").read_text("utf-8") if path is None else _text(path)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SondeError(f"{path}: not TOML: {error}") from None
    listed = tree.get("claim", [])
    if not isinstance(listed, list) or not listed:
        raise SondeError(f"{path} has no claim: write [[claim]] and its keys; see docs/findings/reproduce.md")
    return [_claim(one, f"{path or 'claims'}, claim {place}") for place, one in enumerate(listed, 1)]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SondeError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _claim(tree: Any, where: str) -> Claim:
    """The claim of a table, whose recipe exists; an error says where it stands."""
    try:
        claim = _parsed(tree)
        if claim.study is not None:
            _check_against_recipe(claim, _config(claim))
    except SondeError as error:
        raise SondeError(f"{where}: {error}") from None
    return claim


def _parsed(tree: Any) -> Claim:
    known = {one.name for one in fields(Claim)}
    if not isinstance(tree, dict):
        raise SondeError("write [[claim]] and its keys")
    for key in tree:
        if key not in known:
            raise SondeError(f"unknown key {key!r}: {nearest(key, known)}")
    for key in ("source", "metric", "value"):
        if key not in tree:
            raise SondeError(f"{key} is missing")
    claim = Claim(**tree)
    if base_of(claim.metric) not in TRAINED:
        raise SondeError(f"unknown metric {claim.metric!r}: {nearest(claim.metric, TRAINED)}")
    if (claim.study is None) == (claim.missing is None):
        raise SondeError("give either a study or, as `missing`, why there is none")
    if claim.study is not None and claim.study not in STUDIES:
        raise SondeError(f"unknown study {claim.study!r}: {nearest(claim.study, STUDIES)}")
    _check_value(claim)
    return claim


def _check_value(claim: Claim) -> None:
    """Refuse a value that the metric cannot have, and a spread of one seed."""
    low, high = TRAINED[base_of(claim.metric)].bounds
    if not (math.isfinite(claim.value) and low <= claim.value <= high):
        hint = ": write a share, 0.36 for 36 %" if (low, high) == SHARE else ""
        raise SondeError(f"value = {claim.value:g}: {claim.metric} lies between {low:g} and {high:g}{hint}")
    if claim.is_log and not claim.value > 0:
        raise SondeError(f"{claim.metric} is compared by a factor, so its value must be above 0")
    if claim.std is not None and not math.isfinite(claim.std):
        raise SondeError(f"std = {claim.std:g} is not a finite number")
    if claim.std is not None and claim.n < 2:
        raise SondeError(f"std = {claim.std:g} with n = {claim.n}: a standard deviation over seeds needs two or more")


def _check_against_recipe(claim: Claim, config: RunConfig) -> None:
    """Refuse a place that the runs do not have: an epoch after the last one, or a layer where there is none."""
    if claim.epoch is not None and claim.epoch > config.epochs:
        raise SondeError(f"epoch = {claim.epoch}: the runs have {config.epochs} epochs")
    of_layers = TRAINED[base_of(claim.metric)].axis in ("layer", "block")
    if of_layers and claim.layer is None:
        raise SondeError(f'{claim.metric} has a value at every layer: set layer to a number, "top" or "deep"')
    if TRAINED[base_of(claim.metric)].axis == "network" and claim.layer is not None:
        raise SondeError(f"{claim.metric} has one value for the whole network: leave layer out")


def answers(claims: Iterable[Claim], stored: Runs | None) -> list[Answer]:
    """Each claim beside the complete runs of the store that have its recipe, whatever their seed."""
    by_recipe: dict[str, list[Run]] = {}
    for run in stored.runs if stored else ():
        if run.manifest.state == "complete":
            by_recipe.setdefault(run.recipe, []).append(run)
    return [_answer(claim, by_recipe) for claim in claims]


def _answer(claim: Claim, by_recipe: Mapping[str, Sequence[Run]]) -> Answer:
    if claim.missing is not None:
        return _without(claim, claim.missing)
    recipe = recipe_key(to_tree(_config(claim)))
    runs = sorted((run for run in by_recipe.get(recipe, []) if run.id == run_id(run.config)), key=lambda run: run.seed)
    if not runs:
        return _without(claim, "no run of this recipe is in the store")
    readings = [_reading(claim, run) for run in runs]
    ids, seeds = tuple(run.id for run in runs), tuple(run.seed for run in runs)
    ours = summarise_known(readings)
    values = [reading.value for reading in readings if reading.defined]
    if not values or (claim.is_log and min(values) <= 0):
        why = "a value is 0, which has no ratio" if values else f"{claim.metric}: {ours.reason}"
        return Answer(claim, ours, "undecided", math.nan, math.nan, why, ids, seeds)
    if claim.is_log:
        values = [math.log(value) for value in values]
        ours = Summary(mean=math.exp(math.fsum(values) / len(values)), std=math.nan, n=len(values))
    verdict, low, high, why = _decide(claim, values, ours)
    return Answer(claim, ours, verdict, low, high, why, ids, seeds)


def _without(claim: Claim, why: str) -> Answer:
    return Answer(claim, Summary(mean=math.nan, std=math.nan, n=0), "not run", math.nan, math.nan, why, (), ())


def _config(claim: Claim) -> RunConfig:
    """The recipe of a claim, with seed 0."""
    found = narrowed(STUDIES[str(claim.study)].configs(claim.scale, [0]), claim.only)
    if len(found) != 1:
        raise SondeError(f"{claim.setting}: {len(found)} recipes of the study fit; `only` must leave one")
    return change(found[0], claim.set)


def _reading(claim: Claim, run: Run) -> Reading:
    epoch = run.epochs if claim.epoch is None else claim.epoch
    if claim.layer == "deep":
        return run.mean(claim.metric, epoch, run.deep)
    return run.at(claim.metric, epoch, run.depth if claim.layer == "top" else claim.layer)


def _decide(claim: Claim, values: Sequence[float], ours: Summary) -> tuple[Verdict, float, float, str]:
    """Compare the interval of the difference with the tolerance.

    Reproduced: the interval lies within the tolerance.  Contradicted: the difference is larger than the tolerance, and
    the interval excludes 0.  The interval is Welch's.  A side that has one seed, or no published spread, takes the
    spread of the other side.
    """
    apart, tolerance = _apart(claim, ours.mean), math.log(claim.tolerance) if claim.is_log else claim.tolerance
    error, freedom, whose = _error(claim, values)
    if math.isnan(error):
        return "undecided", math.nan, math.nan, "neither side has a spread over seeds"
    half = t_quantile((1 + CONFIDENCE) / 2, freedom) * error
    low, high = apart - half, apart + half
    why = f"{100 * CONFIDENCE:.0f} % interval from {whose}, tolerance {_tolerance(claim)}"
    if -tolerance <= low and high <= tolerance:
        return "reproduced", low, high, why
    differs = abs(apart) > tolerance and not low <= 0 <= high
    return "contradicted" if differs else "undecided", low, high, why


def _error(claim: Claim, values: Sequence[float]) -> tuple[float, int, str]:
    """The standard error of the difference, its degrees of freedom, and whose spread it is from."""
    ours = summarise(values).std ** 2
    theirs = math.nan if claim.std is None or claim.n < 2 or claim.is_log else claim.std**2
    if not math.isnan(ours) and not math.isnan(theirs):
        a, b = ours / len(values), theirs / claim.n
        pooled = (a + b) ** 2 / (a**2 / (len(values) - 1) + b**2 / (claim.n - 1)) if a + b > 0 else 1
        return math.sqrt(a + b), max(1, math.floor(pooled)), "both spreads"
    if math.isnan(ours) and math.isnan(theirs):
        return math.nan, 0, "none"
    known, n, whose = (
        (theirs, claim.n, "the published spread") if math.isnan(ours) else (ours, len(values), "our spread")
    )
    return math.sqrt(known * (1 / len(values) + 1 / claim.n)), n - 1, whose


def _apart(claim: Claim, value: float) -> float:
    """Ours − theirs, or the logarithm of their ratio."""
    return math.log(value / claim.value) if claim.is_log else value - claim.value


def _is_share(claim: Claim) -> bool:
    return TRAINED[base_of(claim.metric)].bounds == SHARE


def _value(claim: Claim, mean: float, std: float | None) -> str:
    if _is_share(claim):
        return accuracy(mean, std)
    spread = f" ± {number(std)}" if std is not None and not math.isnan(std) else ""
    return number(mean) + spread


def _difference(claim: Claim, apart: float) -> str:
    if claim.is_log:
        return f"×{number(math.exp(min(apart, 700.0)))}"
    return signed(100 * apart if _is_share(claim) else apart)


def _tolerance(claim: Claim) -> str:
    if claim.is_log:
        return f"a factor of {claim.tolerance:g}"
    return f"{100 * claim.tolerance:g} points" if _is_share(claim) else f"{claim.tolerance:g}"
