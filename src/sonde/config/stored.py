"""Read a stored configuration: Sonde's own names and plain data.  Reading a store never imports and never calls code.

A store may come from anybody, and its checksums are no signature: whoever wrote a file also wrote its checksum.  So
everything in a store is data:

- A part of Sonde's own is looked up by its name in Sonde's tables, and its options are checked by type and range.
- A plugin (a model, rule, task, probe or optimiser from outside the package) is a name and a source, `mine.py:Mine@…`.
  Every command shows, audits, reports and exports its runs without its code.  The copy of the file in the run's folder
  is never run, and no module is imported because a store names it.
- Where its code is needed, the user names it on this command line (`--task mine.py:rings`), or this program has
  passed it, registered it or trained with it.  The digest of the file is compared with the stored one before the file
  is run.
- Sizes are bounded before anything is decoded, and symbolic links inside a store are never written through
  (`store/files.py`).  A run is what its whole configuration says, not what 40 bits of its id say
  (`run_ids.config_digest`).

`config.parse` is for configurations that the user wrote; it imports what they name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sonde import plugins
from sonde.config import CHOICES, RunConfig, parse, refuse_version
from sonde.core.errors import SondeError
from sonde.metrics.probes import PROBES

PROBE_LISTS = ("names", "costly")


def read(tree: Mapping[str, Any]) -> RunConfig:
    """The configuration of a stored tree.  Refuses one that needs the code of a plugin that is not loaded."""
    for part, name, source in _outside(tree):
        if plugins.loaded(part, name, source) is None:
            raise SondeError(f"its {part} is from outside Sonde: {_how_to_name(part, source or name)}")
    refuse_other_versions(tree)
    return parse(tree)


def has_plugin(tree: Mapping[str, Any]) -> bool:
    """Whether any part of a stored tree is from outside Sonde."""
    return any(True for _ in _outside(tree))


def refuse_other_versions(tree: Mapping[str, Any]) -> None:
    """Raise where a stored part has another version than today's; one that names no version has version 1."""
    for part, table in CHOICES.items():
        section = tree.get(part)
        name = section.get("name") if isinstance(section, Mapping) and "source" not in section else None
        if isinstance(name, str) and name in table:
            refuse_version(part, name, table[name], tree[part].get("version", 1))


def read_without(tree: Mapping[str, Any], parts: tuple[str, ...]) -> RunConfig:
    """The same for a reader that does not need these parts: a plugin among them is replaced by a built-in part."""
    known = dict(tree)
    unknown = {part for part, name, source in _outside(tree) if plugins.loaded(part, name, source) is None}
    if "rule" in parts and "rule" in unknown:
        known["rule"] = "bp"
    if "optimiser" in parts and "optimiser" in unknown:
        known["optimiser"] = {}
    if "probe" in parts and "probe" in unknown:
        probes = dict(known["probes"])
        for key in PROBE_LISTS:
            probes[key] = [name for name in probes.get(key, []) if name in PROBES]
        known["probes"] = {key: value for key, value in probes.items() if value or key != "names"}
    return read(known)


def name_again(tree: Mapping[str, Any], part: str, reference: str) -> None:
    """Load the plugin that the user names for a stored part; raise unless its source is the stored one."""
    stored = next((source or name for of, name, source in _outside(tree) if of == part), None)
    if stored is None:
        raise SondeError(f"--{part} {reference}: the run's {part} is one of Sonde's own; leave the option out")
    found = str(plugins.peek(part, reference))
    if found != stored:
        raise SondeError(
            f"--{part} {reference} is {found}, but the run was made with {stored}: name the file with that content; "
            "the run's folder keeps a copy of each file of code"
        )
    plugins.load_plugin(part, reference)


def _outside(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Part, name and source of every plugin in a stored tree; a value of a wrong type counts as one and is refused."""
    for part in (*CHOICES, "optimiser"):
        section = tree.get(part, {})
        if not isinstance(section, Mapping):
            section = {"name": section}
        name, source = section.get("name", "adamw" if part == "optimiser" else ""), section.get("source")
        built_in = CHOICES.get(part, plugins.BUILT_IN["optimiser"])
        if source is not None or not isinstance(name, str) or name not in built_in:
            yield part, str(name), "" if source is None else str(source)
    probes = tree.get("probes", {})
    if not isinstance(probes, Mapping):
        raise SondeError(f"probes: expected keys and values, got {str(probes)[:60]!r}")
    for key in PROBE_LISTS:
        names = probes.get(key, [])
        for name in names if isinstance(names, list | tuple) else [names]:
            if not isinstance(name, str) or name not in PROBES:
                yield "probe", "", str(name)


def _how_to_name(part: str, source: str) -> str:
    where, _, stamp = source.partition("@")
    shown = where if len(where) <= 80 else f"{where[:80]}…"
    digest = f" (digest {stamp[-12:]})" if stamp else ""
    again = "pass it in Python"
    if part in ("rule", "task"):
        again = f"--{part} {'path/to/' if '.py' in where or '.npz' in where else ''}{shown}"
    return f"{shown}{digest}; its code runs only if you name it again: {again}"
