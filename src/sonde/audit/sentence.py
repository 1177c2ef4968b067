"""The verdict in words, computed from the answers it stands on."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from sonde.audit.answer import Answer
from sonde.audit.credit import MEASURES, span
from sonde.audit.verdict import QUESTIONS, RuleAudit, Tally
from sonde.statistics import summarise
from sonde.verdicts import number


def sentence(rule: RuleAudit) -> str:
    """What became of the scale, the reference gradient, the credit and the blocks."""
    clauses = (_scale(rule), _gradient(rule), _credit(rule), _margin(rule), _left_out(rule))
    return f"{rule.label}: {'; '.join(clause for clause in clauses if clause)}"


def verdict(rule: RuleAudit) -> str:
    """The questions that fired, in how many seeds, and those that stay open."""
    tallies = {question: rule.tally(question) for question in QUESTIONS}
    fired = [
        question if len(tally.fired) == tally.n else f"{question} ({len(tally.fired)} of {tally.n})"
        for question, tally in tallies.items()
        if tally.fired
    ]
    open_ = [f"{question} {_open(tally)}" for question, tally in tallies.items() if tally.undefined]
    if not fired and not open_:
        return "baseline" if rule.rule == "frozen" else "healthy"
    return "; ".join(part for part in (", ".join(fired) or "none fired", ", ".join(open_)) if part)


def _open(tally: Tally) -> str:
    word = "not evidence" if (tally.reason or "").startswith("not evidence") else "undefined"
    return word if len(tally.undefined) == tally.n else f"{word} ({len(tally.undefined)} of {tally.n})"


def _scale(rule: RuleAudit) -> str:
    tally = rule.tally("D1")
    if tally.fired:
        times = number(_mean(tally.fired.values()))
        return f"‖h‖ grows {times}× per block {_from(tally.fired.values())}{_share(tally, tally.fired)}"
    if not tally.clear:
        return f"the growth of ‖h‖ is undefined ({tally.reason})"
    times = number(max(answer.value for answer in tally.clear.values()))
    once = [a.first_fired for a in tally.clear.values() if a.first_fired is not None]
    passed = f" at the end, after more than {rule.thresholds.growth:g}× at epoch {min(once)}" if once else ""
    return f"‖h‖ grows at most {times}× per block{passed}{_share(tally, tally.clear)}"


def _gradient(rule: RuleAudit) -> str:
    tally = rule.tally("D2")
    if tally.fired:
        part = number(_mean(tally.fired.values()))
        accuracy = rule.scalar("train_acc")
        at = f" (train accuracy {number(accuracy.mean, 3)})" if accuracy.n else ""
        text = (
            f"the BP gradient has collapsed to {part} of its value at init {_from(tally.fired.values())}"
            f"{at}{_share(tally, tally.fired)}"
        )
        if rule.rule in ("bp", "frozen"):
            return text
        every = len(tally.fired) == tally.n
        return (
            f"{text}, so {'the cosine is' if every else 'there the cosine is'} not evidence{_rho_alone(rule)}"
        )
    if not tally.clear:
        return f"the BP gradient relative to init is undefined ({tally.reason})"
    part = number(_mean(tally.clear.values()))
    once = [a.first_fired for a in tally.clear.values() if a.first_fired is not None]
    passed = (
        f" at the end, after falling below {rule.thresholds.gradient:g} at epoch {min(once)}" if once else ""
    )
    return f"the BP gradient is {part} of its value at init{passed}{_share(tally, tally.clear)}"


def _credit(rule: RuleAudit) -> str:
    if rule.rule == "bp":
        return "its credit is the gradient itself"
    if rule.rule == "frozen":
        return rule.runs[0].answers["D3"].reason or ""
    tally = rule.tally("D3")
    layers = range(1, rule.depth + 1)
    if tally.fired:
        return (
            f"the credit is no better than chance at {_at_chance(tally, layers)} "
            f"{_from(tally.fired.values())}{_numbers(rule, tally.fired)}{_share(tally, tally.fired)}"
        )
    if tally.clear:
        return (
            f"the credit beats chance at {_layers(layers)} {span(layers)}"
            f"{_numbers(rule, tally.clear)}{_share(tally, tally.clear)}"
        )
    collapsed = rule.tally("D2").fired  # of these seeds the clause of D2 has said it
    others = [answer.reason for seed, answer in tally.undefined.items() if seed not in collapsed]
    return f"whether the credit beats chance is undefined ({others[0]})" if others else ""


def _at_chance(tally: Tally, layers: Sequence[int]) -> str:
    """The layers at chance, with the number of seeds where they are not the same in all."""
    seeds = Counter(layer for answer in tally.fired.values() for layer in answer.layers)
    chance = sorted(seeds)
    if len(set(seeds.values())) == 1 and seeds[chance[0]] == len(tally.fired):
        where = span(chance)
    else:
        where = ", ".join(f"{layer} ({seeds[layer]} of {tally.n} seeds)" for layer in chance)
    among = "" if len(chance) == len(layers) else f" of {span(layers)}"
    return f"{_layers(chance)} {where}{among}"


def _numbers(rule: RuleAudit, seeds: Collection[int]) -> str:
    """The deep means of these seeds beside their nulls, with the layers they cover."""
    parts = []
    for metric, name in MEASURES.items():
        known = rule.controlled(metric, seeds)
        if known.value.n and known.null.n:
            parts.append(
                f"{name} {number(known.value.mean)} against {number(known.null.mean)} of a random vector"
            )
    layers = tuple(range(1, rule.depth))
    return f" (mean over {_layers(layers)} {span(layers)}: {', '.join(parts)})" if parts else ""


def _rho_alone(rule: RuleAudit) -> str:
    """ρ needs no reference gradient: what it says where the cosine is barred."""
    collapsed = rule.tally("D2").fired
    found = [
        layer
        for run in rule.runs
        if run.subject.seed in collapsed
        for layer in run.credits
        if layer.metric == "rho"
    ]
    if not found or any(layer.reason is not None for layer in found):
        return ""
    chance = sorted({layer.layer for layer in found if not layer.above(rule.thresholds)})
    if chance:
        return f", and ρ is no better than chance at {_layers(chance)} {span(chance)}"
    return ", though ρ beats chance at every layer"


def _margin(rule: RuleAudit) -> str:
    if rule.rule == "frozen":
        return "it is the baseline"
    tally = rule.tally("D4")
    if tally.fired:
        answers = tally.fired.values()
        short = f" (short of {rule.thresholds.points:g} points {_from(answers)})"
        return f"blocks are {_points(_mean(answers), 'only ')} frozen{short}{_share(tally, tally.fired)}"
    if tally.clear:
        return f"blocks are {_points(_mean(tally.clear.values()))} frozen{_share(tally, tally.clear)}"
    return f"whether the blocks help is undefined ({tally.reason})"


def _points(points: float, only: str = "") -> str:
    if points < 0:
        return f"{number(-points)} points worse than"
    return f"{only}{number(points)} points better than" if points else "no better than"


def _left_out(rule: RuleAudit) -> str:
    n = len(rule.left_out)
    return f"{n} more run{'s' if n > 1 else ''} did not complete" if n else ""


def _mean(answers: Iterable[Answer]) -> float:
    return summarise(answer.value for answer in answers).mean


def _from(answers: Iterable[Answer]) -> str:
    epochs = sorted({answer.since for answer in answers if answer.since is not None})
    if epochs == [0]:
        return "from init on"
    return f"from epoch {epochs[0]}" if len(epochs) == 1 else f"from epochs {epochs[0]}–{epochs[-1]}"


def _share(tally: Tally, seeds: Collection[int]) -> str:
    return "" if len(seeds) == tally.n else f" in {len(seeds)} of {tally.n} seeds"


def _layers(layers: Collection[int]) -> str:
    return "layer" if len(layers) == 1 else "layers"
