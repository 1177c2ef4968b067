"""The runs of a page: what each was, which it may be drawn beside, and which are shown one by one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.analysis.configurations import Kind, kinds
from sonde.analysis.levels import levels, options_of
from sonde.core.formatting import network
from sonde.core.run_ids import Flat, distinct_names, identity, without
from sonde.store.stored import Run

MOST_RUNS = 300  # with a line in the charts and in the table
FEWEST_RUNS = 30  # of these, however much they measured
MOST_VALUES = 1_000_000  # measured by the runs with a line: about nine bytes each
MOST_NAMED = 20  # ids or seeds in a list beside them


@dataclass(frozen=True, kw_only=True)
class Session:
    """One stretch of training: from which epoch, when and where."""

    start: str
    when: str
    where: str
    made_with: str


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One stored run."""

    id: str
    label: str
    network: str  # of its family, with the options that tell it from namesakes
    model: str
    rule: str
    rule_label: str
    task: str
    family: str  # what it shares with the runs it may be drawn beside
    seed: int
    epoch: int | None
    epochs: int
    depth: int
    state: str
    message: str | None
    seconds: Mapping[str, float]
    sessions: Sequence[Session]
    studies: Sequence[str]  # sections it belongs to


def run_lines(runs: Sequence[Run], studies: dict[str, list[str]]) -> list[RunLine]:
    """The runs by family: those that differ in nothing but network, rule and seed."""
    families: dict[str, list[Kind]] = {}
    for kind in kinds(runs):
        families.setdefault(identity(_family(kind)), []).append(kind)
    titles = _titles(families)
    lines: dict[str, RunLine] = {}
    for key, members in families.items():
        networks, rules = _options(members, "model", network_of), _options(members, "rule", _rule_of)
        for index, kind in enumerate(members):
            for run in kind.runs:
                told = networks[index, network_of(run)], rules[index, _rule_of(run)]
                lines[run.id] = _line(run, titles[key], *told, studies[run.id])
    order = {run.id: index for index, run in enumerate(runs)}
    return [
        lines[id]
        for members in families.values()
        for id in sorted((run.id for kind in members for run in kind.runs), key=order.__getitem__)
    ]


def _family(kind: Kind) -> Flat:
    return without(kind.flat, ("model", "rule"))


def _titles(families: dict[str, list[Kind]]) -> dict[str, str]:
    """Task and length; where that does not tell families apart, the fields that do."""

    def short(run: Run) -> str:
        return f"{run.about['task_label']}, {run.config['epochs']} epochs"

    kinds = [members[0] for members in families.values()]
    titles = distinct_names((short(kind.runs[0]), _family(kind)) for kind in kinds)
    return dict(zip(families, titles, strict=True))


def _line(run: Run, family: str, of_network: str, of_rule: str, studies: Sequence[str]) -> RunLine:
    config, manifest = run.config, run.manifest
    return RunLine(
        id=run.id,
        label=run.label,
        network=network_of(run) + of_network,
        model=config["model"]["name"],
        rule=config["rule"]["name"],
        rule_label=_rule_of(run) + of_rule,
        task=run.about["task_label"],
        family=family,
        seed=config["seed"],
        epoch=manifest.epoch,
        epochs=config["epochs"],
        depth=run.about["depth"],
        state=run.standing.state,
        message=run.standing.why,
        seconds=manifest.seconds,
        sessions=[_session(session) for session in manifest.sessions],
        studies=studies,
    )


def _options(members: Sequence[Kind], factor: str, label: Callable[[Run], str]) -> dict[tuple[int, str], str]:
    """By kind and label: the options that tell a network or rule from its namesakes; none where labels do."""
    namesakes: dict[str, dict[int, Flat]] = {}
    for index, kind in enumerate(members):
        for run in kind.runs:
            namesakes.setdefault(label(run), {})[index] = kind.flat
    found = {}
    for name, alike in namesakes.items():
        present = levels(list(alike.values()), factor)
        for index, flat in alike.items():
            level = present[identity(options_of(flat, factor))]
            found[index, name] = level.label.removeprefix(level.name) if len(present) > 1 else ""
    return found


def _session(session: dict[str, Any]) -> Session:
    environment = session.get("environment") or {}
    machine, packages = environment.get("machine") or {}, environment.get("packages", {})
    git = environment.get("git")
    threads = environment.get("threads")
    where = [place_of(session), machine.get("processor"), environment.get("device")]
    made = [f"{name} {packages[name]}" for name in ("sonde", "torch") if name in packages]
    if git:
        changed = " with uncommitted changes" * bool(git.get("dirty"))
        made.append(f"commit {str(git.get('commit'))[:10]}{changed}")
    return Session(
        start=start(session),
        when=str(session.get("started", "time not recorded")),
        where=", ".join([*(str(part) for part in where if part), *([f"threads: {threads}"] if threads else [])])
        or "place not recorded",
        made_with=", ".join(made) or "versions not recorded",
    )


def network_of(run: Run) -> str:
    return network(run.about)


def _rule_of(run: Run) -> str:
    return str(run.about["rule_label"])


def place_of(session: Mapping[str, Any]) -> str | None:
    """The machine, with the node of a cluster as the engine named it; None where nothing was recorded."""
    host = ((session.get("environment") or {}).get("machine") or {}).get("host")
    node = session.get("node")
    return ", ".join(str(part) for part in (host, node and f"node {node}") if part) or None


def start(session: Mapping[str, Any]) -> str:
    """How a session began; of one that went on also where."""
    epoch = session.get("from_epoch")
    if epoch is None:
        return "from the start"
    where = place_of(session)
    return f"resumed after epoch {epoch}" + (f" on {where}" if where else "")


def sample(runs: Sequence[RunLine], values: int = 0, most: int = MOST_RUNS) -> list[RunLine]:
    """At most so many runs, in their order: the first seed of every network, rule and state, then the second, …

    Fewer where all of them together have so many `values` that a page could not hold those of `most`.
    """
    most = min(most, max(FEWEST_RUNS, MOST_VALUES * len(runs) // max(1, values)))
    if len(runs) <= most:
        return list(runs)
    seen: dict[tuple[str, ...], int] = {}
    turns = []
    for place, run in enumerate(runs):
        kind = (run.family, run.network, run.rule_label, run.state)
        seen[kind] = seen.get(kind, 0) + 1
        turns.append((seen[kind], place))
    return [runs[place] for place in sorted(place for _, place in sorted(turns)[:most])]


def listed(values: Iterable[object], most: int | None) -> str:
    """The values with commas; of more than `most` the first ones, and how many there are."""
    values = list(values)
    shown = ", ".join(str(value) for value in values[:most])
    return shown if most is None or len(values) <= most else f"{shown}, … ({len(values):,} in all)"
