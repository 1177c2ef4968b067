"""Loss spikes: when a loss jumps, which parameter moved first, and what kind of spike it is.

The watch writes the last 64 steps of every parameter when the loss or the gradient leaves its band, and watches the
steps that follow.  The kind follows from the order of events: a loss that jumps before any weight has moved far comes
from its batch; a weight that moved first comes from a rate, from Adam's state, or from its own module.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.analysis.diagnosis.run_record import BINARY_LOSSES, CLASS_LOSSES
from sonde.core.formatting import number
from sonde.core.seed_statistics import band_limit, noise_between
from sonde.metrics.metric import family_of

JUMP = 10.0  # times the median of the steps before: a note, where nothing but the loss is known
JUMP_WINDOW = 20
SMALL = 0.1  # of the first loss: a smaller jump is none
LEAVES = 1.5  # times the median of the steps before, and 6 deviations of their noise above it
_STEPS, _AFTER = 64, 16  # around the step in which a number left its band
_LEAD = 32  # steps by which a cause comes before the spike, at most
_FEWEST, _RECENT = 16, 32  # losses before the spike: at least, and the last ones
_FEW = 8  # values of a parameter before it can jump
MOVED, USUAL = 2.0, 4.0  # times the largest, and the median, of the steps before: a parameter moved
FAR = 0.01  # of its norm that a parameter moves, at least
BY_ITSELF = 30.0  # times the median: in the step of the spike itself, more than a gradient explains
WOKE = 10.0  # times the largest gradient of the steps before
RATE = 2.0  # times the largest rate of the last steps before
OF_BATCH = 3.0  # times the usual loss: a batch whose loss comes back
OF_FIRST = 0.25  # of the first loss: such a batch is higher by this; a single sample that is wrong makes less
_ALONE = 0.5  # share of the parameters that moved: fewer moved on their own
LOGITS, LOGITS_GREW = 15.0, 2.5  # the largest attention logit after a spike, and relative to before
_LOAD_GREW = 1.3  # load of the busiest expert, relative to before


def _first_jump(steps: Mapping[int, float], until: int, above: Callable[[Sequence[float]], float]) -> int | None:
    """The first step up to `until` whose value is above what the values before it allow."""
    before: list[float] = []
    for step, value in sorted(steps.items()):
        if step > until:
            return None
        if len(before) >= _FEW and value > above(before) > 0:
            return step
        before.append(value)
    return None


def _moves(before: Sequence[float]) -> float:
    return max(MOVED * max(before), USUAL * statistics.median(before), FAR)


def _by_themselves(before: Sequence[float]) -> float:
    return max(BY_ITSELF * statistics.median(before), FAR)


def _loss_limit(before: Sequence[float]) -> float:
    """The largest loss that the noise between batches explains.

    The loss of a batch is a mean over its samples.  Where most samples have a small loss and a few a large one, its
    noise is skewed and grows with the loss, so it is that of logarithms.  Of losses below zero, it is that of values.
    """
    if min(before) <= 0:
        return band_limit(before, LEAVES)
    return max(math.exp(band_limit([math.log(value) for value in before], 1.0)), LEAVES * statistics.median(before))


@dataclass(frozen=True, kw_only=True)
class _Spike:
    """The rows around one spike."""

    s: RunEvidence
    about: int  # the step in which a number left its band
    world: int  # processes
    until: int  # the last step that is watched because of it

    def _window(self, steps: Mapping[int, float]) -> dict[int, float]:
        return {step: value for step, value in steps.items() if self.about - _STEPS < step <= self.until}

    @cached_property
    def losses(self) -> dict[int, float]:
        """step → loss; ∞ where it is not finite."""
        known = self.s.rows.filter((pl.col("metric") == "loss") & pl.col("module").is_null())
        pairs = known.sort("step").select("step", "value", "defined").iter_rows()
        return self._window({step: value if defined else math.inf for step, value, defined in pairs})

    @cached_property
    def step(self) -> int | None:
        """The first step whose loss is above its band.

        Else the one in which it left the band of the watch, if a few parameters had just moved by themselves; else the
        one from which on losses are higher on average.
        """
        least = SMALL * abs(self.s.first_loss or 0.0)
        for step, value in self.losses.items():
            before = [known for at, known in self.losses.items() if at < step and math.isfinite(known)]
            recent = before[-_RECENT:]
            if len(recent) >= _FEWEST and value > max(_loss_limit(recent), statistics.median(recent) + least):
                return step
        return self.about if self._moved_by_themselves() else self._shift(least)

    def _moved_by_themselves(self) -> bool:
        """Whether a few parameters moved far more than before, just as the loss left the band of the watch.

        The band of logarithms is wider, and is for a loss without such a cause.
        """
        before = [value for step, value in self.losses.items() if step < self.about and math.isfinite(value)]
        recent = before[-_RECENT:]
        if len(recent) < _FEWEST or not self.losses.get(self.about, 0.0) > LEAVES * statistics.median(recent):
            return False
        moved = self.first(self.moves, _by_themselves, self.about)
        return moved.step is not None and moved.step >= self.about - 1 and moved.share < _ALONE

    def _shift(self, least: float) -> int | None:
        """The step before and after which mean losses differ most, if by 6 deviations of their noise."""
        losses = {step: value for step, value in self.losses.items() if 0 < value < math.inf}
        values, best, found = list(losses.values()), 0.0, None
        for place, step in enumerate(losses):
            before, after = values[max(0, place - _FEWEST) : place], values[place : place + _AFTER]
            if min(len(before), len(after)) < _FEW:
                continue
            low, high = (statistics.fmean(map(math.log, part)) for part in (before, after))
            noise = noise_between([math.log(value) for value in before])
            apart = (high - low) / math.sqrt(1 / len(before) + 1 / len(after))
            if apart > max(best, 6 * noise) and math.exp(high) > max(LEAVES * math.exp(low), math.exp(low) + least):
                best, found = apart, step
        return found

    @property
    def usual(self) -> float:
        """The median loss before the spike."""
        return statistics.median(self._before)

    @property
    def height(self) -> float:
        """The largest loss from the spike on, relative to the usual one."""
        return max(value for step, value in self.losses.items() if step >= (self.step or 0)) - self.usual

    @property
    def _before(self) -> list[float]:
        return [value for step, value in self.losses.items() if step < (self.step or 0)][-_RECENT:]

    @property
    def returns(self) -> bool:
        """Whether the loss is back in its band three steps after the spike."""
        limit = _loss_limit(self._before)
        later = [value for step, value in self.losses.items() if (self.step or 0) < step <= (self.step or 0) + 3]
        return bool(later) and later[-1] <= limit

    def _series(self, metric: str) -> dict[str, dict[int, float]]:
        return {name: known for name, steps in self.s.series(metric).items() if (known := self._window(steps))}

    @cached_property
    def moves(self) -> dict[str, dict[int, float]]:
        """parameter → step → movement of a few of its entries."""
        return self._series("update_sample")

    @cached_property
    def gradients(self) -> dict[str, dict[int, float]]:
        """parameter → step → norm of its gradient."""
        return self._series("weight_grad_norm")

    def first(
        self, series: Mapping[str, Mapping[int, float]], above: Callable[[Sequence[float]], float], until: int
    ) -> "_First":
        """The first step in which a member jumps, `until` at the latest, and the members that do."""
        jumps = {name: at for name, steps in series.items() if (at := _first_jump(steps, until, above)) is not None}
        if not jumps:
            return _First(None, [], 0.0)
        first = min(jumps.values())
        names = [name for name, at in jumps.items() if at == first]
        there = sum(first in steps for steps in series.values())
        return _First(first, names, len(names) / max(1, there))

    @cached_property
    def moved(self) -> "_First":
        """Parameters that moved far first: before the spike, or in its step by more than a gradient explains."""
        before = self.first(self.moves, _moves, (self.step or 0) - 1)
        if before.step is not None:
            return before
        return self.first(self.moves, _by_themselves, self.step or 0)

    @cached_property
    def woken(self) -> "_First":
        """Parameters whose gradient jumped before that of all others."""
        return self.first(self.gradients, lambda before: WOKE * max(before), self.step or 0)

    @cached_property
    def undefined(self) -> int | None:
        """The first step around the spike with a loss or a gradient that is not finite."""
        rows = self.s.rows.filter(
            pl.col("metric").is_in(["loss", "weight_grad_norm"])
            & ~pl.col("defined")
            & pl.col("reason").str.contains("infinite|not a number")
            & pl.col("step").is_between(self.about - _STEPS, self.until)
        )
        return None if rows.is_empty() else int(str(rows["step"].min()))

    def changes(self, metric: str) -> bool:
        """Whether all later values of a metric of the run lie beyond those before the spike."""
        known = self.s.of_run(metric)
        before, after = ([v for at, v in known.items() if (at < (self.step or 0)) is early] for early in (True, False))
        return min(len(before), len(after)) >= 3 and (min(after) > max(before) or max(after) < min(before))

    def grown(self, metric: str, start: int, *, least: float, factor: float) -> list[tuple[str, float, float]]:
        """Members of a metric whose largest value after the spike is above that before it, the most grown first."""
        found = []
        for name, steps in self._largest(metric).items():
            before = [value for step, value in steps.items() if step < start]
            after = [value for step, value in steps.items() if start <= step <= self.until]
            if before and after and max(after) >= max(least, factor * max(before[-3:])):
                found.append((name, max(before[-3:]), max(after)))
        return sorted(found, key=lambda one: one[2] / one[1] if one[1] > 0 else math.inf, reverse=True)

    def _largest(self, family: str) -> dict[str, dict[int, float]]:
        """module → step → the largest value of a metric or of the members of its family."""
        found: dict[str, dict[int, float]] = {}
        for metric in self.s.rows["metric"].unique().sort():
            for name, steps in self.s.series(metric).items() if family_of(metric) == family else ():
                for step, value in steps.items():
                    known = found.setdefault(name, {})
                    known[step] = max(value, known.get(step, -math.inf))
        return found


@dataclass(frozen=True)
class _First:
    step: int | None
    names: list[str]
    share: float  # of the parameters


def _owners(s: RunEvidence, names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(s.owner, names)))


def _within(inner: Iterable[str], outer: str) -> bool:
    """Whether one of the modules is the other, lies in it, or lies beside it in the same parent."""
    return any(name == outer or name.startswith(f"{outer}.") or outer.startswith(f"{name}.") for name in inner)


def _of_kind(x: _Spike) -> Finding | None:
    """The finding of the kind that fits first."""
    return next((shown for kind in _KINDS if (shown := kind(x)) is not None), None)


def _overflow(x: _Spike) -> Finding | None:
    """A loss or a gradient is not finite."""
    if x.undefined is None or x.step is None:
        return None
    alone = x.moved.step is not None and x.moved.share < _ALONE
    half = sorted({p["dtype"] for p in x.s.parameters if p.get("dtype") in ("float16", "bfloat16")})
    said = f"In step {x.undefined} the loss or a gradient is not finite{f'; weights are {half[0]}' if half else ''}."
    return found(
        "certain",
        f"Kind: overflow. {said}",
        *([_said_moved(x)] if alone else []),
        modules=_owners(x.s, x.moved.names) if alone else (),
        step=x.undefined,
        advice="Compute the module that overflows in float32 or bfloat16, and skip steps whose loss is not finite.",
    )


def _rate(x: _Spike) -> Finding | None:
    """A learning rate jumped before the loss."""
    first = x.first(x._series("learning_rate"), lambda before: RATE * max(before[-_FEW:]), x.step or 0)
    if first.step is None or x.step is None or x.step - first.step > _LEAD:
        return None
    steps = x._series("learning_rate")[first.names[0]]
    before = statistics.median(value for step, value in steps.items() if step < first.step)
    said = f"Kind: learning rate. In step {first.step} it is {number(steps[first.step])}, before {number(before)}."
    return found("certain", said, step=first.step, advice="Correct the schedule of the rate at this step.")


def _stale_moment(x: _Spike) -> Finding | None:
    """Gradients return to a parameter that had small ones, and Adam's step is long."""
    woken = x.woken.step
    both = [name for name in _woken_alone(x) if name in x.moved.names]
    if woken is None or not both or not _woken_just_before(x, woken):
        return None
    name = max(both, key=lambda one: x.gradients[one][woken])
    before = statistics.median(value for step, value in x.gradients[name].items() if step < woken)
    now = x.gradients[name][woken]
    said = (
        f"Kind: Adam's second moment. In step {woken} the gradient of {name} is {number(now)}, before "
        f"{number(before)}; Adam divides it by the root of the second moment of the small gradients."
    )
    advice = "Lower beta2 or the rate of these parameters, or clip the update."
    return found("likely", said, modules=_owners(x.s, both), step=woken, advice=advice)


def _woken_alone(x: _Spike) -> list[str]:
    """Parameters whose gradient jumped, relative to before, ten times as far as that of the others in the same step."""
    step = x.woken.step or 0
    grown = {}
    for name, known in x.gradients.items():
        before = [value for at, value in known.items() if at < step]
        if before and step in known:
            grown[name] = known[step] / max(before) if max(before) > 0 else math.inf
    least = WOKE * max(1.0, statistics.median(grown.values())) if grown else math.inf
    return [name for name in x.woken.names if grown.get(name, 0.0) >= least]


def _woken_just_before(x: _Spike, woken: int) -> bool:
    """Whether parameters under Adam got gradients and moved in one step, shortly before the spike."""
    adam = any("Adam" in one["type"] for one in x.s.facts.get("optimisers", []))
    return adam and x.moved.step == woken and x.step is not None and 0 < x.step - woken <= _LEAD


def _attention(x: _Spike) -> Finding | None:
    """Attention logits grew, in a module that moved first or while nothing moved far."""
    start = x.moved.step if x.moved.step is not None else x.step
    grown = x.grown("attention_max_logit", start or 0, least=LOGITS, factor=LOGITS_GREW)
    owners = _owners(x.s, x.moved.names)
    inside = [one for one in grown if _within(owners, one[0])] if owners and x.moved.share < _ALONE else []
    alone = x.moved.step is None and not x.returns
    for name, before, after in (inside or (grown if alone else []))[:1]:
        said = f"Kind: attention logits. The largest logit of {name} is {number(after)}, before {number(before)}."
        more = [_said_moved(x)] if inside else []
        advice = "Normalise queries and keys (QK-norm), or lower the rate of their projections."
        return found("likely", said, *more, modules=[name], step=start, advice=advice)
    return None


def _router(x: _Spike) -> Finding | None:
    """The load of experts became uneven, in a router that moved first or while nothing moved far."""
    start = x.moved.step if x.moved.step is not None else x.step
    owners = _owners(x.s, x.moved.names) if x.moved.share < _ALONE else []
    grown = x.grown("router_load", start or 0, least=0.0, factor=0.0 if owners else _LOAD_GREW)
    inside = [one for one in grown if one[0] in owners]
    alone = x.moved.step is None and not x.returns
    for name, before, after in (inside or (grown if alone else []))[:1]:
        said = (
            f"Kind: router. The busiest expert of {name} takes {number(after)} times its fair share, "
            f"before {number(before)}."
        )
        more = [_said_moved(x)] if inside else []
        advice = "Add a load-balancing loss or a z-loss to the router, or lower its rate."
        return found("likely", said, *more, modules=[name], step=start, advice=advice)
    return None


def _module(x: _Spike) -> Finding | None:
    """A few parameters moved far before the loss jumped, and no kind above explains it."""
    if x.moved.step is None or x.moved.share >= _ALONE or not x.moved.names:
        return None
    return found("likely", f"Kind: weights. {_said_moved(x)}", modules=_owners(x.s, x.moved.names), step=x.moved.step)


def _rank(x: _Spike) -> Finding | None:
    """The gradient, which is of all processes, jumped before the loss of this one."""
    if x.world < 2 or x.woken.step is None or x.step is None or not x.woken.step < x.step or x.woken.share < _ALONE:
        return None
    said = (
        f"Kind: another rank. In step {x.woken.step} the gradient of all {x.world} processes jumps, while the loss of "
        "rank 0 is as usual."
    )
    spikes = x.s.facts.get("spikes", [])
    told = {one["rank"] for one in spikes if one.get("rank") and one["of"] == "loss" and one["step"] == x.woken.step}
    if told:
        said += f" That of rank {', '.join(map(str, sorted(told)))} left its band."
    return found("likely", said, step=x.woken.step, advice="Look at the batch that the other ranks had in this step.")


def _batch(x: _Spike) -> Finding | None:
    """The loss of a batch is high on weights that had moved as usual.  Batches differ: a little higher is no spike."""
    is_last = x.step == max(x.s.losses, default=0)  # whether the loss returns is not known
    least = max((OF_BATCH - 1) * abs(x.usual), OF_FIRST * abs(x.s.first_loss or 0.0), _of_wrong_answers(x))
    if (x.returns or is_last or x.s.learned) and x.height < least:
        return None
    changed = not x.returns and any(map(x.changes, ("target_mean", "target_spread")))
    thrown = x.returns or is_last or (not changed and x.first(x.moves, _moves, x.until).step is not None)
    said = (
        "Kind: batch. Before this step weights moved as usual, so the loss of this batch is high on the weights "
        f"before, too{'; the loss comes back after it' if x.returns else ''}."
    )
    advice = "Look at the batch of this step; skip it, or clip the norm of the gradient."
    level = "likely" if thrown else "note"  # else the data have become harder
    return found(level, said, step=x.step, advice=advice)


def _of_wrong_answers(x: _Spike) -> float:
    """What a cross-entropy rises by if half of a batch is answered wrongly.

    A wrong answer costs at least what confidence in right ones has gained, log(first loss / usual loss); a few samples
    that are hard at the moment cost less.
    """
    first = x.s.first_loss or 0.0
    known = x.s.loss_ops & (CLASS_LOSSES | BINARY_LOSSES)
    return math.log(first / x.usual) / 2 if known and first > x.usual > 0 else 0.0


_KINDS = (_rate, _stale_moment, _overflow, _rank, _attention, _router, _module, _batch)


def _said_moved(x: _Spike) -> str:
    name, step = x.moved.names[0], x.moved.step or 0
    before = statistics.median(value for at, value in x.moves[name].items() if at < step)
    return (
        f"{name} is the first to move: in step {step} by {number(x.moves[name][step])} of its norm, before by "
        f"{number(before)} a step."
    )


def _tallest(s: RunEvidence) -> _Spike | None:
    """Of the spikes whose steps the watch kept, the one with the largest loss."""
    known = [
        _Spike(s=s, about=one["step"], world=one.get("world", 1), until=one.get("until") or one["step"] + _AFTER)
        for one in s.facts.get("spikes", [])
    ]
    found = [one for one in known if one.step is not None]
    tallest = max(found, key=lambda one: one.height, default=None)
    same = [one for one in found if tallest is not None and one.step == tallest.step]
    return min(same, key=lambda one: abs(one.about - (one.step or 0)), default=None)  # it has most of the steps before


def _spike_around(s: RunEvidence) -> Finding | None:
    """A spike whose steps the watch kept."""
    spike = _tallest(s)
    shown = None if spike is None else _of_kind(spike)
    if spike is None or spike.step is None or shown is None:
        return None
    value = spike.losses[spike.step]
    reached = number(value) if math.isfinite(value) else "not finite"
    said = f"In step {spike.step} the loss is {reached}, the median of the steps before it {number(spike.usual)}."
    return replace(shown, evidence=(said, *shown.evidence))


def first_movers(s: RunEvidence, most: int = 8) -> tuple[int, list[tuple[str, int, float]]] | None:
    """The step of the largest spike, and the parameters that moved far around it, the first of them first.

    Of each parameter: its name, the step, and how far it moved then, relative to the median of the steps before.
    """
    spike = _tallest(s)
    if spike is None or spike.step is None:
        return None
    moved = []
    for name, steps in spike.moves.items():
        step = _first_jump(steps, spike.step + _AFTER, _moves)
        if step is not None:
            before = statistics.median(value for at, value in steps.items() if at < step)
            moved.append((name, step, steps[step] / before if before > 0 else math.inf))
    return spike.step, sorted(moved, key=lambda one: (one[1], -one[2]))[:most]


def _jumps(s: RunEvidence) -> Finding | None:
    """A loss that jumps and comes back: a note, unless what was learned is lost."""
    losses = list(s.losses.items())
    for place in range(JUMP_WINDOW, len(losses)):
        before = statistics.median(value for _, value in losses[place - JUMP_WINDOW : place])
        step, value = losses[place]
        if before > 0 and value > max(JUMP * before, 2 * (s.last_loss or 0.0), 0.1 * abs(losses[0][1])):
            units = "steps" if s.audited is None else "epochs"
            said = f"In {s.when(step)} the loss is {number(value)}, "
            said += f"the median of the {JUMP_WINDOW} {units} before it {number(before)}."
            undone = before < abs(s.first_loss or 0.0) / 2 and (s.fell or 0.0) < 0  # what the run had learned
            return found("likely" if undone else "note", said, step=step)
    return None


SPIKES = (
    Diagnosis(
        name="loss_spike",
        signs=(_spike_around, _jumps),
        asked=lambda s: s.loss_measures,
        role="symptom",
        short="The loss jumps far above its recent values.",
        measured=(
            f"A loss more than {LEAVES:g} times the median of the steps before it. It also exceeds the median by 6 "
            f"deviations of noise, in logarithms, and by {SMALL:g} of the first loss. Losses that stay so much higher "
            "on average count, too, and losses that are high in the step in which a few parameters moved "
            f"{BY_ITSELF:g} times as far as before. The finding names the kind: overflow, learning rate, Adam's second "
            "moment, attention logits, router, weights of a module, another rank, or batch. A loss that returns at "
            f"once, or is the last one, or of a run that learned, is at least {OF_BATCH:g} times the median. It "
            f"exceeds the median by {OF_FIRST:g} of the first loss. A cross-entropy also exceeds it by half of "
            "log(first loss / median): so much do wrong answers to half of a batch cost. If it stays and targets have "
            f"changed for good, it is a note. If only losses are known, it is a loss {JUMP:g} times the median of the "
            f"{JUMP_WINDOW} steps before it: a note, unless what was learned is lost."
        ),
        why="A spike undoes some of what was learned, and may announce a run that diverges.",
        remedy="Clip the norm of the gradient, or lower the rate.",
        reference="Chowdhery et al. (2022), PaLM: scaling language modeling with pathways, arXiv:2204.02311",
    ),
)
"""One diagnosis, of several kinds."""
