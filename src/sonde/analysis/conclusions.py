"""What a command ends with: the answer, a small table of what differs, how sure it is, and what to do next.

`run`, `audit`, `compare`, `recovery` and `diagnose` end with one `Conclusion`, of at most `MOST_LINES` lines on 80
columns.  Here are those of stored runs; the studies have their own.  Everything is computed from what `--details`
prints.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sonde.analysis.audit import QUESTIONS, Audit, RecipeAudit, RuleAudit
from sonde.analysis.audit_text import QUESTION_NAMES, short_verdict
from sonde.analysis.comparison import Comparison
from sonde.analysis.diagnosis.finding import LEVELS, Findings
from sonde.analysis.recovery import RankCorrelation, Recovered
from sonde.core.formatting import accuracy, listed, number, said_share, signed
from sonde.core.run_ids import distinct_names
from sonde.core.seed_statistics import cannot_decide

MOST_LINES = 12
MOST_NAMES = 3  # that a sentence lists
_LEAST_CELL = 8  # letters of a cell that is cut
_FEWEST_ROWS = 3  # of a table, however long the texts are


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The end of a command.  The most important rows of the table come first: on few lines the last ones are cut."""

    answer: str
    columns: Mapping[str, str] = field(default_factory=dict)  # heading → side; the last is cut where it is long
    rows: Sequence[Sequence[str]] = ()
    note: str = ""  # what the headings mean, and what is undefined
    sure: str = ""
    next: str = ""

    def lines(self, width: int = 80, most: int = MOST_LINES) -> list[str]:
        """The text, wrapped between words.  Rows that do not fit are counted in a line."""
        above, below = _wrapped(self.answer, width), []
        for label, text in (("", self.note), ("How sure: ", self.sure), ("Next: ", self.next)):
            below += _wrapped(label + text, width) if text else []
        room = max(_FEWEST_ROWS, most - len(above) - len(below) - 1)
        rows, rest = list(self.rows), 0
        if len(rows) > room:
            rows, rest = rows[: room - 1], len(rows) - room + 1
        table = _table_lines(self.columns, rows, width) if rows else []
        return [*above, *table, *([f"… and {rest} more: --details"] if rest else []), *below]


def _wrapped(text: str, width: int) -> list[str]:
    bound = text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0")
    lines = textwrap.wrap(bound, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _table_lines(columns: Mapping[str, str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The table with a line a row; columns that do not fit are left out from the right, and the last one is cut."""
    headings, sides = list(columns), list(columns.values())
    grid = [headings, *map(list, rows)]
    widths = [max(map(len, cells)) for cells in zip(*grid, strict=True)]
    while len(widths) > 2 and sum(widths[:-1]) + 2 * (len(widths) - 1) + min(_LEAST_CELL, widths[-1]) > width:
        del widths[-1]
    widths[-1] = max(min(_LEAST_CELL, widths[-1]), min(widths[-1], width - sum(widths[:-1]) - 2 * (len(widths) - 1)))
    lines = []
    for row in grid:
        cells = [cell if len(cell) <= size else f"{cell[: size - 1]}…" for cell, size in zip(row, widths, strict=False)]
        padded = (
            cell.rjust(size) if side == "right" else cell.ljust(size)
            for cell, size, side in zip(cells, widths, sides, strict=False)
        )
        lines.append("  ".join(padded).rstrip())
    return lines


def n_seeds(counts: Iterable[int]) -> str:
    """`n = 1 seed`, `n = 2 seeds`, `n = 1–3 seeds`."""
    known = sorted(set(counts)) or [0]
    if known == [1]:
        return "n = 1 seed"
    return f"n = {known[0]} seeds" if len(known) == 1 else f"n = {known[0]}–{known[-1]} seeds"


def sureness(n: Sequence[int], decided: Sequence[str], undecided: Sequence[str], test: str = "95 % interval") -> str:
    """Which differences the intervals over seeds decide, in a sentence or two."""
    seeds = n_seeds(n)
    if set(n) <= {0, 1}:
        return f"{seeds}, so there is no interval. Other seeds may give another answer."
    if not undecided:
        return f"{seeds}; the {test} decides {'every case' if len(decided) > 1 else 'it'}."
    if not decided:
        return f"{seeds}; the {test} leaves {listed(undecided, MOST_NAMES)} undecided."
    return f"{seeds}. Decided ({test}): {listed(decided, MOST_NAMES)}. Undecided: {listed(undecided, MOST_NAMES)}."


# ── sonde audit ─────────────────────────────────────────────────────────────────────────────────────
def of_audit(audited: Audit, next: str) -> Conclusion:
    """By rule where there is one recipe, else by question."""
    recipes = audited.recipes
    by_rule = [(recipe, rule) for recipe in recipes for rule in recipe.rules]
    fired = {question: [pair for pair in by_rule if _fires(pair[1], question)] for question in QUESTION_NAMES}
    found = [pair for pair in by_rule if any(pair in some for some in fired.values()) or pair[1].diverged]
    where = recipes[0].title if len(recipes) == 1 else f"{len(recipes)} recipes on {listed(_tasks(recipes))}"
    answer = f"{where}: " + (
        f"{len(found)} of {len(by_rule)} rules {'has' if len(found) == 1 else 'have'} a finding{_by_task(found)}."
        if found
        else f"no question fires for any of {len(by_rule)} rules."
    )
    asked = [rule for _, rule in by_rule if rule.margin.asked and rule.margin.points.n]
    common = {"answer": answer, "note": _undefined(by_rule), "next": next, "sure": _sure_of_margins(asked)}
    if len(recipes) == 1:
        return _audit_by_rule(recipes[0], common)
    rows = []
    for question, name in QUESTION_NAMES.items():
        clear, open_ = _counts([rule for _, rule in by_rule], question)
        names = ", ".join(_named(*pair) for pair in fired[question]) or "–"
        rows.append([f"{question} {name}", str(len(fired[question])), str(clear), str(open_), names])
    columns = {"question": "left", "fires": "right", "clear": "right", "open": "right", "fires for": "left"}
    return Conclusion(columns=columns, rows=rows, **common)


def _audit_by_rule(recipe: RecipeAudit, common: Mapping[str, str]) -> Conclusion:
    columns = {"rule": "left", "n": "right", "test acc.": "right", "points over frozen": "right", "audit": "left"}
    rows = []
    for rule in recipe.rules:
        test = rule.scalar("test_acc")
        points = "baseline" if rule.rule == "frozen" else rule.margin.text
        rows.append([rule.label, str(len(rule.runs)), accuracy(test.mean, test.std), points, short_verdict(rule)])
    return Conclusion(columns=columns, rows=rows, **common)


def _fires(rule: RuleAudit, question: str) -> bool:
    return rule.margin.outcome == "hurts" if question == "D4" else bool(rule.runs and rule.tally(question).fired)


def _counts(rules: Sequence[RuleAudit], question: str) -> tuple[int, int]:
    """For how many rules the question is clear, and for how many it is undefined or undecided."""
    if question == "D4":
        asked = [rule.margin.outcome for rule in rules if rule.margin.asked]
        return asked.count("helps"), asked.count("undecided") + asked.count(None)
    tallies = [rule.tally(question) for rule in rules if rule.runs]
    open_ = sum(bool(tally.undefined) and not tally.fired for tally in tallies)
    return sum(bool(tally.clear) and not tally.fired and not tally.undefined for tally in tallies), open_


def _tasks(recipes: Iterable[RecipeAudit]) -> list[str]:
    return list(dict.fromkeys(_task(recipe) for recipe in recipes))


def _named(recipe: RecipeAudit, rule: RuleAudit) -> str:
    """The rule where a recipe has several, else the network; with the task."""
    task = _task(recipe)
    if len(recipe.rules) > 1:
        return f"{rule.label} ({task})"
    return f"{recipe.title.partition(' on ')[0].replace(', weights', '')} ({task}, L = {rule.depth})"


def _by_task(found: Sequence[tuple[RecipeAudit, RuleAudit]]) -> str:
    counts = Counter(_task(recipe) for recipe, _ in found)
    return f" ({listed(f'{n} on {task}' for task, n in counts.items())})" if len(counts) > 1 else ""


def _undefined(by_rule: Sequence[tuple[RecipeAudit, RuleAudit]]) -> str:
    """How many answers are undefined, with the most frequent reason."""
    reasons: Counter[str] = Counter()
    for _, rule in by_rule:
        for question in QUESTIONS if rule.runs else ():
            if why := rule.tally(question).reason:
                reasons[why] += 1
        if rule.runs and rule.margin.asked and rule.margin.outcome is None and rule.margin.reason:
            reasons[rule.margin.reason] += 1
    if not reasons:
        return ""
    ((why, n),) = reasons.most_common(1)
    most = f"{n}: " if len(reasons) > 1 else ""
    return f"{reasons.total()} answers are undefined ({most}{why.partition(': ')[0]})."


def _sure_of_margins(asked: Sequence[RuleAudit]) -> str:
    if not asked:
        return "D4 needs runs with frozen blocks of the same recipe: `sonde train --rule frozen`."
    seeds = n_seeds(rule.margin.points.n for rule in asked)
    open_ = sum(rule.margin.outcome == "undecided" for rule in asked)
    if not open_:
        return f"{seeds}; D4 (accuracy over frozen blocks) is decided for every rule."
    return f"{seeds}, too few for D4 (accuracy over frozen blocks) in {open_} of {len(asked)} cases."


# ── sonde compare ───────────────────────────────────────────────────────────────────────────────────
def of_comparison(found: Comparison, next: str) -> Conclusion:
    """The levels beside the baseline, those that differ most first."""
    base = found.groups[0]
    task = found.shared.get("task")
    where = f"On {task}, " if task else ""
    ranked = sorted(found.differences, key=lambda one: -abs(one.summary.mean) if one.summary.n else 0.0)
    decided = [one.level for one in ranked if one.interval.excludes_zero]
    undecided = [one.level for one in ranked if one.level not in decided and one.summary.n]
    groups = {group.level.label: group for group in found.groups}
    rows = [[base.level.label, str(base.summary.n), number(base.summary.mean, 4), "baseline", ""]]
    for one in ranked:
        mean = groups[one.level].summary
        rows.append([one.level, str(mean.n), number(mean.mean, 4), *found.difference_cells(one)])
    gaps = [one for one in found.differences if not one.summary.n]
    note = f"{len(gaps)} differences are undefined ({gaps[0].summary.reason})." if gaps else ""
    if not found.matched:
        note = f"UNMATCHED: the runs also differ in {listed(found.differing, MOST_NAMES)}. {note}".strip()
    return Conclusion(
        answer=f"{where}{found.title()}: {_differ(found, decided)}",
        columns={found.factor: "left", "n": "right", "mean": "right", "difference": "right", "95 % interval": "left"},
        rows=rows,
        note=note,
        sure=sureness([one.summary.n for one in found.differences], decided, undecided),
        next=next,
    )


def _differ(found: Comparison, decided: Sequence[str]) -> str:
    means = [(group.summary.mean, group.level.label) for group in found.groups if group.summary.n]
    if not means:
        return "undefined for every level."
    (low, least), (high, most) = min(means), max(means)
    apart = f"from {number(low, 4)} ({least}) to {number(high, 4)} ({most})" if low < high else f"all {number(low, 4)}"
    n, base = len(found.differences), found.groups[0].level.label
    verb = "differs" if len(decided) == 1 else "differ"
    return f"{apart}. {len(decided)} of {n} level{'s' * (n > 1)} {verb} from {base} (95 % interval)."


# ── sonde recovery ──────────────────────────────────────────────────────────────────────────────────
_MOST_TASKS = 3  # that have a column


def of_recovery(
    shares: Sequence[tuple[RecipeAudit, Sequence[Recovered]]], foretold: Sequence[RankCorrelation], next: str
) -> Conclusion:
    """The share of every rule on every task, the largest first, and what correlates with it."""
    told = [(recipe, one) for recipe, rules in shares for one in rules]
    known = sorted(((recipe, one) for recipe, one in told if one.share.n), key=lambda pair: -pair[1].share.mean)
    if not known:
        return Conclusion(answer=f"No rule has a share of backprop's gain over frozen blocks: {_why_none(told)}.")
    best = {recipe.title: (recipe, one) for recipe, one in reversed(known)}
    parts = (f"on {_task(recipe)} {one.label} ({said_share(one.share.mean)})" for recipe, one in best.values())
    answer = f"Largest share of backprop's gain over frozen blocks: {listed(parts, MOST_NAMES)}."
    if strongest := [one for one in foretold if one.reason is None]:
        one = strongest[0]
        answer += f" Over {one.n} rules it correlates most with {one.quantity}: "
        equals = "" if one.said_chance.startswith("≤") else "= "
        answer += f"{signed(one.correlation, 2)} (p {equals}{one.said_chance})."
    lacking = len(told) - len(known)
    decided = [f"{one.label} ({_task(recipe)})" for recipe, one in known if one.interval.excludes_zero]
    undecided = [f"{one.label} ({_task(recipe)})" for recipe, one in known if not one.interval.excludes_zero]
    columns, rows = _shares_by_task(list(best), known) if len(best) <= _MOST_TASKS else _shares_by_rule(known)
    return Conclusion(
        answer=answer,
        columns=columns,
        rows=rows,
        note=f"{lacking} more have no share ({_why_none(told)})." if lacking else "",
        sure=sureness([one.share.n for _, one in known], decided, undecided),
        next=next,
    )


_Shares = Sequence[tuple[RecipeAudit, Recovered]]


def _shares_by_task(titles: Sequence[str], known: _Shares) -> tuple[dict[str, str], list[list[str]]]:
    tasks = {recipe.title: f"of BP's gain on {_task(recipe)}" for recipe, _ in known}
    cells: dict[str, dict[str, str]] = {}
    for recipe, one in known:
        cells.setdefault(one.label, {})[recipe.title] = " ".join(share_cells(one))
    names = distinct_names([(tasks[title], {"recipe": title}) for title in titles])
    columns = {"rule": "left", **dict.fromkeys(names, "left")}
    return columns, [[label, *(of.get(title, "–") for title in titles)] for label, of in cells.items()]


def _shares_by_rule(known: _Shares) -> tuple[dict[str, str], list[list[str]]]:
    columns = {"task": "left", "rule": "left", "n": "right", "of BP's gain": "right", "95 % interval": "left"}
    return columns, [[_task(recipe), one.label, str(one.share.n), *share_cells(one)] for recipe, one in known]


def _task(recipe: RecipeAudit) -> str:
    return str(recipe.recipe.get("task"))


def _why_none(told: _Shares) -> str:
    """The first reason why there is no share."""
    reasons = (one.share.reason for _, one in told if one.share.reason)
    return next(reasons, "no recipe has backprop, frozen and another rule")


def share_cells(one: Recovered) -> list[str]:
    """The share and its interval; in its place that it is undecided, or nothing where there is none."""
    share, interval = said_share(one.share.mean, one.test_error), one.interval
    if interval.reason:
        return [share, ""]
    if cannot_decide(interval, one.share.n, math.inf):
        return [share, "undecided"]
    return [share, f"[{said_share(interval.low)}, {said_share(interval.high)}]"]


# ── sonde diagnose ──────────────────────────────────────────────────────────────────────────────────
def of_findings(found: Mapping[str, Findings], next: str) -> Conclusion:
    """The findings of one run, or of all runs by name; symptoms are told by their causes."""
    if len(found) == 1:
        ((run, findings),) = found.items()
        return replace(_of_one_run(run, findings), next=next)
    causes = {run: [one for one in findings if one.explained_by is None] for run, findings in found.items()}
    wrong = {run: some for run, some in causes.items() if any(one.level != "note" for one in some)}
    by_name: dict[str, list[tuple[str, str]]] = {}
    for run, some in causes.items():
        for one in some:
            by_name.setdefault(one.name, []).append((run, one.level))

    def rank(name: str) -> tuple[int, int]:
        return -max(LEVELS.index(level) for _, level in by_name[name]), -len(by_name[name])

    rows = []
    for name in sorted(by_name, key=rank):
        levels = Counter(level for _, level in by_name[name])
        said = ", ".join(f"{levels[level]} {level}" for level in reversed(LEVELS) if level in levels)
        tasks = ", ".join(dict.fromkeys(_short_id(run) for run, _ in by_name[name]))
        rows.append([name, str(len(by_name[name])), said, tasks])
    clear = len(found) - len(wrong)
    none = "" if not clear else f" {clear} have none." if wrong else ""
    sound = sum(findings.learned for findings in found.values())
    answer = f"{len(wrong)} of {len(found)} runs {'has' if len(wrong) == 1 else 'have'} a finding.{none}"
    if not wrong:
        learn = f"No fault was found in {clear} runs; {sound} of them are known to learn."
        answer = f"Nothing is wrong in {clear} runs." if sound == clear else learn
    return Conclusion(
        answer=answer,
        columns={"finding": "left", "runs": "right", "how sure": "left", "in": "left"},
        rows=rows,
        sure="certain: the numbers show it; likely: they are typical of it; note: worth knowing." if rows else "",
        next=next,
    )


def _of_one_run(run: str, findings: Findings) -> Conclusion:
    causes = [one for one in findings if one.explained_by is None]
    if not causes:
        return Conclusion(answer=f"{run}: {findings}")
    first, *others = causes
    evidence = f" {first.evidence[0]}" if first.evidence else ""
    symptoms = len(findings) - len(causes)
    more = (
        f" {symptoms} more finding{'s are symptoms' if symptoms > 1 else ' is a symptom'} of these." if symptoms else ""
    )
    return Conclusion(
        answer=f"{run}: {first.name} ({first.level_with_label}){first.place}, since {first.since}.{evidence}",
        columns={"also": "left", "how sure": "left", "since": "left", "what to try": "left"},
        rows=[[one.name, one.level_with_label, one.since, one.remedy] for one in others],
        note=f"Remedy: {first.remedy}{more}",
    )


def _short_id(run: str) -> str:
    """The run's id without seed and hash."""
    parts = run.split("-")
    return "-".join(parts[:-2]) if len(parts) > 3 else run
