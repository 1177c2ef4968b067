"""Trained runs on the page: their labels, the families they are drawn in, their sessions, and which are shown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.analysis.runs import Recipe, levels, options_of
from sonde.core.formatting import network
from sonde.core.run_ids import Flat, distinct_names, identity, without
from sonde.store.run import Run

MOST_RUNS = 300  # with a line in the charts and in the table
FEWEST_RUNS = 30  # of these, however much they measured
MOST_RUN_VALUES = 1_000_000  # measured by the runs with a line: about nine bytes each
MOST_NAMED = 20  # ids or seeds in a list beside them


@dataclass(frozen=True, kw_only=True)
class LabelledRun:
    """A run and what the page calls it."""

    run: Run
    network: str  # with the options that tell it from other networks of its family
    rule: str  # the same
    family: str  # what it shares with the runs it may be drawn beside


def label_runs(runs: Sequence[Run], recipes: Sequence[Recipe]) -> list[LabelledRun]:
    """The runs by family: runs of a family differ in nothing but network, rule and seed."""
    families: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        families.setdefault(identity(_family(recipe)), []).append(recipe)
    titles = distinct_names((_title(members[0].runs[0]), _family(members[0])) for members in families.values())
    order = {run.id: index for index, run in enumerate(runs)}
    found = []
    for title, members in zip(titles, families.values(), strict=True):
        networks = _labels(members, "model", lambda run: network(run.about))
        rules = _labels(members, "rule", lambda run: str(run.about["rule_label"]))
        for run in sorted((run for recipe in members for run in recipe.runs), key=lambda run: order[run.id]):
            found.append(LabelledRun(run=run, network=networks[run.id], rule=rules[run.id], family=title))
    return found


def _family(recipe: Recipe) -> Flat:
    return without(recipe.flat, ("model", "rule"))


def _title(run: Run) -> str:
    return f"{run.about['task_label']}, {run.config['epochs']} epochs"


def _labels(recipes: Sequence[Recipe], factor: str, label: Callable[[Run], str]) -> dict[str, str]:
    """Run id → its label, followed by the options that tell it from other networks or rules of that label."""
    by_label: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        for name in dict.fromkeys(map(label, recipe.runs)):
            by_label.setdefault(name, []).append(recipe)
    found: dict[str, str] = {}
    for name, alike in by_label.items():
        present = levels([recipe.flat for recipe in alike], factor)
        for recipe in alike:
            level = present[identity(options_of(recipe.flat, factor))]
            options = level.label.removeprefix(level.name) if len(present) > 1 else ""
            found |= {run.id: name + options for run in recipe.runs if label(run) == name}
    return found


def sample(runs: Sequence[LabelledRun], values: int = 0, most: int = MOST_RUNS) -> list[LabelledRun]:
    """At most `most` runs, in their order: the first seed of every network, rule and state, then the second, …

    Fewer where all runs together have so many `values` that a page could not hold those of `most`.
    """
    most = min(most, max(FEWEST_RUNS, MOST_RUN_VALUES * len(runs) // max(1, values)))
    if len(runs) <= most:
        return list(runs)
    seen: dict[tuple[str, ...], int] = {}
    turns = []
    for index, one in enumerate(runs):
        key = (one.family, one.network, one.rule, one.run.status.state)
        seen[key] = seen.get(key, 0) + 1
        turns.append((seen[key], index))
    return [runs[index] for index in sorted(index for _, index in sorted(turns)[:most])]


def comma_list(values: Iterable[object], most: int | None) -> str:
    """The values with commas; of more than `most` the first ones, and how many there are."""
    values = list(values)
    shown = ", ".join(str(value) for value in values[:most])
    return shown if most is None or len(values) <= most else f"{shown}, … ({len(values):,} in all)"


# ── sessions ────────────────────────────────────────────────────────────────────────────────────────
def session_text(session: Mapping[str, Any]) -> str:
    """A session in one line: from which epoch, when, where and with which code it trained."""
    environment = session.get("environment") or {}
    machine, packages = environment.get("machine") or {}, environment.get("packages", {})
    git, threads = environment.get("git"), environment.get("threads")
    where = [session_machine(session), machine.get("processor"), environment.get("device")]
    where.append(f"threads: {threads}" if threads else None)
    made_with = [f"{name} {packages[name]}" for name in ("sonde", "torch") if name in packages]
    if git:
        changed = " with uncommitted changes" * bool(git.get("dirty"))
        made_with.append(f"commit {str(git.get('commit'))[:10]}{changed}")
    return "; ".join(
        (
            f"{session_start(session)}, {session.get('started', 'time not recorded')}",
            ", ".join(str(part) for part in where if part) or "place not recorded",
            ", ".join(made_with) or "versions not recorded",
        )
    )


def session_machine(session: Mapping[str, Any]) -> str | None:
    """The machine, with the node of a cluster as the engine named it; None where nothing was recorded."""
    host = ((session.get("environment") or {}).get("machine") or {}).get("host")
    node = session.get("node")
    return ", ".join(str(part) for part in (host, node and f"node {node}") if part) or None


def session_start(session: Mapping[str, Any]) -> str:
    """From the start, or the epoch after which the session resumed, and on which machine."""
    epoch = session.get("from_epoch")
    if epoch is None:
        return "from the start"
    machine = session_machine(session)
    return f"resumed after epoch {epoch}" + (f" on {machine}" if machine else "")
