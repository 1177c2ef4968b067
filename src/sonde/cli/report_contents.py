"""Gather what a report says from a store: studies, audit, runs, and what is left out."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sonde
from sonde.audit.audit import RecipeAudit, audit
from sonde.audit.sentence import sentence
from sonde.audit.table import columns, footnotes, lines
from sonde.compare.configurations import described, differing, identity, shown, without
from sonde.compare.factor import levels, options_of
from sonde.config import RunConfig, to_tree
from sonde.errors import SondeError
from sonde.report.contents import AuditPart, AuditTable, Contents, Line, RunLine, Section, Session
from sonde.store.load import Run, Runs
from sonde.studies import STUDIES
from sonde.studies.evidence import Gathered, NoRuns, gather
from sonde.studies.narrow import differences

SCALES = ("quick", "full")


def contents(stored: Runs, *, source: str, title: str) -> Contents:
    """Everything the store holds, study by study and run by run."""
    found, remarks = _without_shared(_sections(stored, source))
    belongs = {run.id: [section for section in found if run.id in section.runs] for run in stored.runs}
    named = {run for section in found for run in section.left_out}
    return Contents(
        title=title,
        source=source,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by sonde {sonde.__version__}",
        runs=_runs(stored.runs, {run: [section.anchor for section in of] for run, of in belongs.items()}),
        rows=stored.rows,
        sections=found,
        audit=_audit(stored),
        apart={run.id: _nearest(run) for run in stored.runs if not belongs[run.id] and run.id not in named},
        remarks=remarks,
    )


def _sections(stored: Runs, source: str) -> list[Section]:
    seeds = sorted({run.config["seed"] for run in stored.runs})
    found = []
    for name, study in STUDIES.items():
        ids = {scale: {config.id for config in study.configs(scale, seeds)} for scale in SCALES}
        same = ids["quick"] == ids["full"]
        for scale in SCALES[:1] if same else SCALES:
            try:
                gathered = gather(stored, study.configs(scale, seeds), source)
            except NoRuns:
                continue
            present = sorted({run.config["seed"] for run in gathered.stored.runs})
            wanted = study.configs(scale, present)
            found.append(
                Section(
                    study=name,
                    scale="quick and full scale, the same recipe" if same else f"{scale} scale",
                    question=study.question,
                    findings=study.findings(gathered),
                    evidence=gathered.evidence,
                    wanted=len(wanted),
                    left_out=_incomplete(gathered, wanted),
                )
            )
    return found


def _incomplete(gathered: Gathered, wanted: Sequence[RunConfig]) -> dict[str, str]:
    ids = {config.id for config in wanted}
    return {run: why for run, why in gathered.left_out.items() if run in ids}


def _without_shared(sections: Sequence[Section]) -> tuple[list[Section], list[str]]:
    """Studies of which the store holds only what another study brought are named, not shown."""
    kept, remarks = [], []
    for section in sections:
        within = [other for other in sections if set(section.runs) < set(other.runs)]
        if within:
            remarks.append(
                f"{section.study} ({section.scale}): {len(section.runs)} of its {section.wanted} runs are stored, "
                f"all of them shared with {within[0].study}; `sonde run {section.study}` trains the others"
            )
        else:
            kept.append(section)
    return kept, remarks


def _nearest(run: Run) -> str:
    """Why the run is in no study: what it lacks of the one it is nearest to."""
    candidates = [
        (name, scale, config)
        for name, study in STUDIES.items()
        for scale in SCALES
        for config in study.configs(scale, [run.config["seed"]])
    ]
    for name, scale, config in candidates:
        if config.id == run.id:
            message = f" ({run.manifest.message})" if run.manifest.message else ""
            return f"{name} ({scale} scale) leaves it out: it is {run.manifest.state}{message}"
    found = [(differences(run.config, to_tree(config)), name, scale) for name, scale, config in candidates]
    telling, name, scale = min(found, key=lambda entry: len(entry[0]))
    why = ", ".join(telling) or "its configuration is the same, but it is stored under another id"
    return f"it belongs to no study; nearest is {name} ({scale} scale): {why}"


def _audit(stored: Runs) -> AuditPart:
    try:
        found = audit(stored)
    except SondeError as error:
        return AuditPart(tables=[], thresholds={}, left_out={}, reason=str(error))
    several = [recipe for recipe in found.recipes if len(recipe.rules) > 1]
    alike: dict[str, list[RecipeAudit]] = {}
    for recipe in found.recipes:
        if len(recipe.rules) == 1:
            alike.setdefault(repr((columns(recipe), _task(recipe, stored))), []).append(recipe)
    tables = [_table([recipe], stored) for recipe in several]
    tables += [_table(group, stored) for group in alike.values()]
    return AuditPart(tables=tables, thresholds=found.thresholds.words, left_out=found.left_out)


def _table(recipes: Sequence[RecipeAudit], stored: Runs) -> AuditTable:
    """One recipe, or several with one rule each in one table."""
    one = len(recipes) == 1
    said = [
        Line(
            sentence=sentence(rule) if one else f"{_network(recipe, stored)}, {sentence(rule)}",
            runs=rule.ids,
            seeds=rule.seeds,
        )
        for recipe in recipes
        for rule in recipe.rules
    ]
    first = recipes[0]
    about = stored[first.rules[0].ids[0]].about
    return AuditTable(
        title=f"{_network(first, stored) if one else 'One rule each'} on {_task(first, stored)}",
        about=f"d = {about['width']}, L = {about['depth']}, {first.recipe['epochs']} epochs",
        columns=dict(_ordered(["network", "left"], list(columns(first).items()), one)),
        lines=[_ordered(_network(recipe, stored), line, one) for recipe in recipes for line in lines(recipe)],
        sentences=said,
        notes=list(dict.fromkeys(note for recipe in recipes for note in footnotes(recipe))),
        recipe=_shared(recipes),
    )


def _ordered(network: Any, cells: Sequence[Any], one: bool) -> list[Any]:
    """Network where there are several, rule, verdict, then the numbers it rests on."""
    rule, *numbers, verdict = cells
    return [*([] if one else [network]), rule, verdict, *numbers]


def _shared(recipes: Sequence[RecipeAudit]) -> dict[str, str]:
    telling = differing([recipe.recipe for recipe in recipes])
    return {
        key: " or ".join(telling[key]) if key in telling else shown(value)
        for key, value in recipes[0].recipe.items()
    }


def _network(recipe: RecipeAudit, stored: Runs) -> str:
    return _network_of(stored[recipe.rules[0].ids[0]])


def _network_of(run: Run) -> str:
    return ", ".join(part for part in (run.about["label"], run.about["variant"]) if part)


def _task(recipe: RecipeAudit, stored: Runs) -> str:
    return str(stored[recipe.rules[0].ids[0]].about["task_label"])


def _runs(runs: Sequence[Run], studies: dict[str, list[str]]) -> list[RunLine]:
    """The runs by family: those that differ in nothing but network, rule and seed."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(identity(without(described(run), ("model", "rule", "seed"))), []).append(run)
    titles = _titles(families)
    return [
        _line(run, titles[key], members, studies[run.id])
        for key, members in families.items()
        for run in members
    ]


def _titles(families: dict[str, list[Run]]) -> dict[str, str]:
    """Task and length; where that does not tell families apart, the fields that do."""

    def short(run: Run) -> str:
        return f"{run.about['task_label']}, {run.config['epochs']} epochs"

    titles = {}
    for key, members in families.items():
        name = short(members[0])
        namesakes = [others[0] for others in families.values() if short(others[0]) == name]
        flat = without(described(members[0]), ("model", "rule", "seed"))
        telling = differing(without(described(run), ("model", "rule", "seed")) for run in namesakes)
        rest = [f"{field} = {shown(flat[field])}" for field in telling if field in flat]
        titles[key] = ", ".join([name, *rest])
    return titles


def _line(run: Run, family: str, members: Sequence[Run], studies: Sequence[str]) -> RunLine:
    config, manifest = run.config, run.manifest
    return RunLine(
        id=run.id,
        label=run.label,
        network=_network_of(run) + _options(run, members, "model"),
        model=config["model"]["name"],
        rule=config["rule"]["name"],
        rule_label=run.about["rule_label"] + _options(run, members, "rule"),
        task=run.about["task_label"],
        family=family,
        seed=config["seed"],
        epoch=manifest.epoch,
        epochs=config["epochs"],
        depth=run.about["depth"],
        state=manifest.state,
        message=manifest.message,
        seconds=manifest.seconds,
        sessions=[_session(session) for session in manifest.sessions],
        studies=studies,
    )


def _options(run: Run, members: Sequence[Run], factor: str) -> str:
    """The options that tell its network or rule from namesakes in the family; empty where the label does."""

    def label(member: Run) -> str:
        return _network_of(member) if factor == "model" else str(member.about["rule_label"])

    namesakes = [described(member) for member in members if label(member) == label(run)]
    present = levels(namesakes, factor)
    level = present[identity(options_of(described(run), factor))]
    return level.label.removeprefix(level.name) if len(present) > 1 else ""


def _session(session: dict[str, Any]) -> Session:
    environment = session.get("environment", {})
    machine, packages = environment.get("machine", {}), environment.get("packages", {})
    git = environment.get("git")
    start = session.get("from_epoch")
    threads = environment.get("threads")
    where = [machine.get("host"), machine.get("processor"), environment.get("device")]
    made = [f"{name} {packages[name]}" for name in ("sonde", "torch") if name in packages]
    if git:
        made.append(f"commit {str(git['commit'])[:10]}{' with uncommitted changes' * bool(git['dirty'])}")
    return Session(
        start="from the start" if start is None else f"resumed after epoch {start}",
        when=str(session.get("started", "time not recorded")),
        where=", ".join(
            [*(str(part) for part in where if part), *([f"threads: {threads}"] if threads else [])]
        )
        or "place not recorded",
        made_with=", ".join(made) or "versions not recorded",
    )
