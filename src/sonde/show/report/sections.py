"""Trained runs on the page: a section for each study and for each recipe in no study, and the audit."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sonde.analysis.audit import QUESTIONS, Audit, AuditCache, RecipeAudit, RuleAudit, audit
from sonde.analysis.audit_text import audit_columns, audit_footnotes, audit_rows, sentence
from sonde.analysis.conclusions import Conclusion
from sonde.analysis.evidence import Evidence
from sonde.analysis.runs import evidence_lines, value_order
from sonde.core.errors import SondeError
from sonde.core.formatting import accuracy, network, sentence_case
from sonde.core.run_ids import belongs, differing, shown
from sonde.show.report import AuditPart, ReportContents
from sonde.show.report.answers import StudyAnswer, of_recipe, of_settings, points_text, study_answer
from sonde.store.load import RowReader
from sonde.store.readings import rows_of_runs
from sonde.store.run import Run, Runs
from sonde.studies import STUDIES
from sonde.studies.study import Gathered, StudyFinding, WantedRuns, differences_to, gather, study_recipes


def counted(present: int, expected: int) -> str:
    """How many runs of those that are expected: never more."""
    if not 0 <= present <= expected:
        raise AssertionError(f"{present} of {expected} runs: they were counted in different ways")
    return f"{present:,} of {expected:,} runs"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A study at one scale, or runs of one recipe that belong to no study."""

    study: str
    scale: str  # in words
    question: str
    anchor: str  # its id on the page
    findings: Sequence[StudyFinding] = field(default_factory=list)
    conclusion: Conclusion | None = None  # of a study: what `sonde run` prints
    answer: StudyAnswer | None = None
    evidence: Evidence
    expected: int  # how many runs the study has with the seeds that are stored
    present: int | None = None  # how many of these are complete; None: all runs of the evidence
    left_out: Mapping[str, str] = field(default_factory=dict)  # runs of the study that are not complete → why
    beside: Sequence[str] = ()  # runs of another recipe that the study trains, too
    drawn_as: str  # the study whose figures are drawn

    @property
    def about(self) -> str:
        """The question, with a capital letter."""
        return sentence_case(self.question)

    @property
    def runs(self) -> list[str]:
        """The ids of its runs."""
        return [*self.evidence.runs["run"], *self.beside]

    @property
    def counted(self) -> str:
        """How many of the expected runs are there, and how many others belong to the study's second recipe."""
        present = self.evidence.runs.height if self.present is None else self.present
        others = len(self.runs) - present
        return counted(present, self.expected) + (f" and {others:,} more" if others else "")

    @property
    def seeds(self) -> list[int | None]:
        """The seeds of its runs, sorted."""
        return self.evidence.runs["seed"].unique().sort().to_list()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A verdict: `state` is good, bad, mixed, open or none, and has a colour and a shape."""

    state: str
    words: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """The verdict on one rule, and its answer to each question."""

    name: str
    verdict: Mark
    answers: Mapping[str, Mark]  # D1 … D4
    accuracy: str


@dataclass(frozen=True, kw_only=True)
class AuditTable:
    """The audit of one recipe, or of several that were run under one rule each."""

    title: str
    about: str
    verdicts: Sequence[VerdictLine]
    columns: Mapping[str, str]  # heading → left or right
    lines: Sequence[Sequence[str]]
    sentences: Sequence[StudyFinding]
    notes: Sequence[str]
    recipe: Mapping[str, str]  # key → value, what the runs share
    several: bool  # rules of one recipe, which are compared with each other


def audit_part(audited: Audit, stored: Runs, first: Collection[str] = ()) -> AuditPart:
    """Every recipe of the store; those that an answer speaks of, by the runs in `first`, come first."""
    groups: dict[str, list[RecipeAudit]] = {}
    for index, recipe in enumerate(audited.recipes):
        alone = repr((audit_columns(recipe), task_of(recipe, stored)))
        groups.setdefault(alone if len(recipe.rules) == 1 else str(index), []).append(recipe)

    def order(recipes: Sequence[RecipeAudit]) -> tuple[bool, bool]:
        runs = {run for recipe in recipes for rule in recipe.rules for run in rule.ids}
        return len(recipes[0].rules) == 1, runs.isdisjoint(first)

    ordered = sorted(map(_by_value, groups.values()), key=order)
    titles = [_title(recipes, stored) for recipes in ordered]
    tables = []
    for recipes, title in zip(ordered, titles, strict=True):
        twins = [group[0] for group, other in zip(ordered, titles, strict=True) if other == title]
        apart = "" if len(twins) == 1 else recipe_labels(twins, stored)[twins.index(recipes[0])]
        tables.append(_table(recipes, title, apart, stored))
    return AuditPart(tables=tables, thresholds=audited.thresholds.words, left_out=audited.left_out)


def _by_value(recipes: Sequence[RecipeAudit]) -> list[RecipeAudit]:
    """In the order of the values in which they differ, numbers as numbers."""
    keys = differing([recipe.recipe for recipe in recipes])
    return sorted(recipes, key=lambda recipe: [value_order(recipe.recipe.get(key)) for key in keys])


def recipe_labels(recipes: Sequence[RecipeAudit], stored: Runs) -> list[str]:
    """Each recipe by what tells it from the others: its network, and the keys in which they differ.

    What is measured, and when, is said only where nothing else tells recipes apart.
    """
    brief = _recipe_labels(recipes, stored, measured=False)
    return brief if len(set(brief)) == len(brief) else _recipe_labels(recipes, stored, measured=True)


def _recipe_labels(recipes: Sequence[RecipeAudit], stored: Runs, *, measured: bool) -> list[str]:
    networks = [network_in(recipe, stored) for recipe in recipes]
    everywhere = [key for key in differing([recipe.recipe for recipe in recipes]) if not belongs(key, "model")]
    everywhere = [key for key in everywhere if measured or not belongs(key, "probes")]
    found = []
    for name, recipe in zip(networks, recipes, strict=True):
        namesakes = [other.recipe for other, same in zip(recipes, networks, strict=True) if same == name]
        keys = [*(key for key in differing(namesakes) if belongs(key, "model")), *everywhere]
        own = [f"{key.removeprefix('model.')} = {shown(recipe.recipe.get(key, 'absent'))}" for key in keys]
        found.append(", ".join([*([] if len(set(networks)) == 1 and own else [name]), *own]))
    return found


def _title(recipes: Sequence[RecipeAudit], stored: Runs) -> str:
    networks = {network_in(recipe, stored): None for recipe in recipes}
    return f"{next(iter(networks)) if len(networks) == 1 else 'One rule each'} on {task_of(recipes[0], stored)}"


def _table(recipes: Sequence[RecipeAudit], title: str, apart: str, stored: Runs) -> AuditTable:
    """One recipe, or several with one rule each in one table, every line labelled by what differs."""
    one = len(recipes) == 1
    names = recipe_labels(recipes, stored)
    named = list(zip(names, recipes, strict=True))
    rules = [("" if one else f"{name}, ", rule) for name, recipe in named for rule in recipe.rules]
    sizes = _sizes(recipes, stored)
    more = [part for part in apart.split(", ") if part not in sizes and not part.startswith("epochs = ")]
    return AuditTable(
        title=title,
        about=", ".join(part for part in (*sizes, *more) if part),
        verdicts=[verdict_line(setting + rule.label, rule) for setting, rule in rules],
        columns=dict(_ordered(["setting", "left"], list(audit_columns(recipes[0]).items()), one)),
        lines=[_ordered(name, line, one) for name, recipe in named for line in audit_rows(recipe)],
        sentences=[_said(setting, rule) for setting, rule in rules],
        notes=_notes(recipes, names),
        recipe=_shared(recipes),
        several=len(recipes[0].rules) > 1,
    )


def _said(setting: str, rule: RuleAudit) -> StudyFinding:
    runs, seeds = tuple(rule.ended), tuple(rule.seeds)
    return StudyFinding(sentence=setting + sentence(rule), shown={}, numbers={}, runs=runs, seeds=seeds)


ANSWERED = {
    "D1": ("scale holds", "state explodes"),
    "D2": ("resolved", "not resolved"),
    "D3": ("above chance", "at chance"),
    "D4": ("blocks help", "blocks hurt"),
}
"""What each question of the audit says where it is clear, and where it fires."""


def verdict_line(name: str, rule: RuleAudit) -> VerdictLine:
    """The answers of one rule in words, and one verdict over all of them."""
    answers = {question: _mark(question, rule) for question in QUESTIONS} | {"D4": _margin_mark(rule)}
    known = rule.scalar("test_acc") if rule.runs else None
    return VerdictLine(
        name=name,
        verdict=_verdict(rule, answers.values()),
        answers=answers,
        accuracy=accuracy(known.mean, known.std) if known and known.n else "undefined",
    )


def _verdict(rule: RuleAudit, answers: Iterable[Mark]) -> Mark:
    """The worst of the answers."""
    states = {answer.state for answer in answers}
    if rule.diverged:
        n = len(rule.runs) + len(rule.diverged)
        return Mark(state="bad", words="diverged", note="" if not rule.runs else f"{len(rule.diverged)} of {n} seeds")
    if "bad" in states or "mixed" in states:
        return Mark(state="bad" if "bad" in states else "mixed", words="problem")
    if rule.rule == "frozen":
        return Mark(state="none", words="baseline")
    if "open" not in states:
        return Mark(state="good", words="healthy")
    return Mark(state="open", words="undecided" if rule.margin.outcome == "undecided" else "nothing fired")


def _mark(question: str, rule: RuleAudit) -> Mark:
    clear, fired = ANSWERED[question]
    tally = rule.tally(question)
    if not tally.n:
        return Mark(state="none", words="not asked")
    if (question, rule.rule) == ("D3", "bp") and len(tally.clear) == tally.n:
        return Mark(state="good", words="exact gradient")
    if tally.fired:
        all_ = len(tally.fired) == tally.n
        note = "" if all_ else f"{len(tally.fired)} of {tally.n} seeds"
        return Mark(state="bad" if all_ else "mixed", words=fired, note=note)
    if tally.undefined:
        barred = (tally.reason or "").startswith("not evidence")
        return Mark(state="open", words="not evidence" if barred else "undefined")
    return Mark(state="good", words=clear)


def _margin_mark(rule: RuleAudit) -> Mark:
    margin = rule.margin
    if not margin.asked:
        return Mark(state="none", words="baseline" if rule.rule == "frozen" else "not asked")
    states = {"helps": "good", "hurts": "bad"}
    words = dict(zip(("helps", "hurts"), ANSWERED["D4"], strict=True))
    points = points_text(rule) if margin.points.n else ""
    outcome = margin.outcome or "undefined"
    return Mark(state=states.get(outcome, "open"), words=words.get(outcome, outcome), note=points)


def _sizes(recipes: Sequence[RecipeAudit], stored: Runs) -> list[str]:
    """Width, depth and length, where the recipes share them."""
    abouts = [stored[recipe.rules[0].ended[0]].about for recipe in recipes]
    said = {
        "d = {}": {about["width"] for about in abouts},
        "L = {}": {about["depth"] for about in abouts},
        "{} epochs": {recipe.recipe["epochs"] for recipe in recipes},
    }
    return [words.format(*values) for words, values in said.items() if len(values) == 1]


def _notes(recipes: Sequence[RecipeAudit], names: Sequence[str]) -> list[str]:
    """Every footnote once; of several recipes those about a rule say whose."""
    notes = []
    for name, recipe in zip(names, recipes, strict=True):
        for note in audit_footnotes(recipe):
            of_rule = len(recipes) > 1 and any(note.startswith(f"{rule.label}: ") for rule in recipe.rules)
            notes.append(f"{name}, {note}" if of_rule else note)
    return list(dict.fromkeys(notes))


def _ordered(setting: Any, cells: Sequence[Any], one: bool) -> list[Any]:
    """What differs where there are several, rule, verdict, then the numbers it rests on."""
    rule, *numbers, verdict = cells
    return [*([] if one else [setting]), rule, verdict, *numbers]


def _shared(recipes: Sequence[RecipeAudit]) -> dict[str, str]:
    telling = differing([recipe.recipe for recipe in recipes])
    return {
        key: " or ".join(telling[key]) if key in telling else shown(value) for key, value in recipes[0].recipe.items()
    }


def network_in(recipe: RecipeAudit, stored: Runs) -> str:
    """What the recipe's network is called."""
    return network(stored[recipe.rules[0].ended[0]].about)


def task_of(recipe: RecipeAudit, stored: Runs) -> str:
    """What the recipe's task is called."""
    return str(stored[recipe.rules[0].ended[0]].about["task_label"])


SCALES = ("quick", "full")
MOST_DRAWN = 4  # recipes in no study with figures; the charts have all of them


def with_trained_parts(contents: ReportContents, stored: Runs, reader: RowReader | None) -> ReportContents:
    """Add the sections of studies and of other recipes, the audit of all runs, and why runs are in no study.

    One cache of audits serves the studies and the whole store.
    """
    audits = AuditCache(stored, reader)
    kept, remarks = _without_shared(_study_sections(stored, contents.source, audits))
    sections = [_with_findings(section, gathered) for section, gathered in kept]
    inside = {run for section in sections for run in section.runs}
    named = {run for section in sections for run in section.left_out}
    own = {run.id for run in stored.runs} - inside
    nearest = _NearestStudy()
    in_no_study = {run.id: nearest(run) for run in stored.runs if run.id in own - named}
    found = replace(contents, sections=sections, in_no_study=in_no_study, remarks=remarks)
    try:
        audited = audit(stored, cache=audits)
    except SondeError as error:
        return replace(found, audit=AuditPart(reason=str(error)))
    own_sections, more = _own_sections(audited, stored, own, contents.source, reader)
    shown = [*sections, *own_sections]
    first = [run for one in shown if one.answer for run in one.answer.runs]
    return replace(found, sections=shown, audit=audit_part(audited, stored, first), remarks=[*remarks, *more])


# ── studies ─────────────────────────────────────────────────────────────────────────────────────────
_StudySection = tuple[Section, Gathered]
"""The section of a study at one scale, before anything is computed from its runs, and these runs."""


def _study_sections(stored: Runs, source: str, audits: AuditCache) -> list[_StudySection]:
    seeds: dict[str, set[int]] = {}
    for run in stored.runs:
        seeds.setdefault(run.recipe, set()).add(run.seed)
    found = []
    for name, study in STUDIES.items():
        same = study_recipes(study, "quick").keys() == study_recipes(study, "full").keys()
        for scale in SCALES[:1] if same else SCALES:
            known = {seed for key in study_recipes(study, scale) for seed in seeds.get(key, ())}
            wanted = WantedRuns.of_study(study, scale, known)
            if not wanted.complete(stored):
                continue
            beside = WantedRuns.of_study(study, scale, known, beside=True)
            gathered = gather(stored, wanted, source, audits, plugins=True, beside=beside, reader=audits.reader)
            expected = WantedRuns.of_study(study, scale, known & {run.seed for run in gathered.stored.runs})
            missing = [run.id for run in stored.runs if run.id in gathered.left_out and run in expected]
            section = Section(
                study=name,
                scale="quick and full scale, the same recipe" if same else f"{scale} scale",
                question=study.question,
                anchor=f"{name}-{scale}",
                evidence=gathered.evidence,
                expected=len(expected),
                present=sum(run in expected for run in gathered.stored.runs),
                left_out={run: gathered.left_out[run] for run in missing},
                beside=[run.id for run in gathered.beside.runs],
                drawn_as=name,
            )
            found.append((section, gathered))
    return found


def _without_shared(found: Sequence[_StudySection]) -> tuple[list[_StudySection], list[str]]:
    """The studies to show, and remarks about those whose stored runs all belong to another study as well."""
    kept, remarks = [], []
    for section, gathered in found:
        within = [other for other, _ in found if {*section.runs} < {*other.runs}]
        if within:
            stored = counted(section.present or 0, section.expected).replace(" of ", " of its ")
            remarks.append(
                f"{section.study} ({section.scale}): {stored} are stored, all of them shared with {within[0].study}; "
                f"`sonde run {section.study}` trains the others"
            )
        else:
            kept.append((section, gathered))
    return kept, remarks


def _with_findings(section: Section, gathered: Gathered) -> Section:
    study = STUDIES[section.study]
    if not (findings := study.findings(gathered)):
        return section
    conclusion = study.conclusion(findings)
    answer = study_answer(section.study, gathered, findings, conclusion)
    return replace(section, findings=findings, conclusion=conclusion, answer=answer)


class _NearestStudy:
    """Why a run is in no study: how it differs from the nearest configuration of a study.

    Each recipe is compared once, however many runs it has.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[str], str, str, str]] = {}  # recipe → what differs; study, scale, its recipe

    def __call__(self, run: Run) -> str:
        if run.recipe not in self._known:
            found = [
                (differences_to(run, key, tree), name, scale, key)
                for name, study in STUDIES.items()
                for scale in SCALES
                for key, tree in study_recipes(study, scale).items()
            ]
            self._known[run.recipe] = min(found, key=lambda entry: len(entry[0]))
        telling, name, scale, key = self._known[run.recipe]
        if key == run.recipe:
            why = f" ({run.status.why})" if run.status.why else ""
            return f"{name} ({scale} scale) leaves it out: it is {run.status.state}{why}"
        why = ", ".join(telling) or "its configuration is the same, but it is stored under another id"
        return f"it belongs to no study; the nearest is {name} ({scale} scale): {why}"


# ── runs in no study ────────────────────────────────────────────────────────────────────────────────
def _own_sections(
    audited: Audit, stored: Runs, own: Collection[str], source: str, reader: RowReader | None
) -> tuple[list[Section], list[str]]:
    """A section for every recipe of the runs in no study, the first of each task with an answer; and remarks."""
    tasks: dict[str, list[RecipeAudit]] = {}
    runs = {run.id: run for run in stored.runs}
    for recipe in audited.recipes:
        if {run for rule in recipe.rules for run in rule.ended} <= set(own) and _size(recipe):
            tasks.setdefault(task_of(recipe, stored), []).append(recipe)
    first, others = list[Section](), list[Section]()
    for task, recipes in tasks.items():
        names = recipe_labels(recipes, stored)
        answer = of_recipe(recipes[0], runs) if len(recipes) == 1 else of_settings(recipes, names, runs)
        pairs = sorted(zip(names, recipes, strict=True), key=lambda pair: -_size(pair[1]))
        for index, (name, recipe) in enumerate(pairs):
            network = network_in(recipe, stored)
            what = name if network in name else f"{network}, {name}"
            ids = {run for rule in recipe.rules for run in rule.ids}
            lines = evidence_lines([run for run in stored.runs if run.id in ids])
            section = Section(
                study="own runs",
                scale=f"{what} on {task}",
                question=f"own runs on {task}",
                anchor=f"own-{len(first) + len(others)}",
                evidence=Evidence(reader or rows_of_runs(stored.rows, ids), lines, source),
                expected=len(ids),
                drawn_as="audit",
            )
            (others if index else first).append(replace(section, answer=None if index else answer))
    kept = [*first, *others[: max(0, MOST_DRAWN - len(first))]]
    left = len(first) + len(others) - len(kept)
    said = f"{left} more recipes in no study have no figures here; charts, audit and runs include them"
    return kept, [said] if left else []


def _size(recipe: RecipeAudit) -> int:
    return sum(len(rule.runs) for rule in recipe.rules)
