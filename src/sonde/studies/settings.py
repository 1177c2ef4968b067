"""What `--only` leaves of a study's runs, and what `--set` makes of them.

A setting is one value, several to be trained in turn, or more for a list:

model.d=64                one value
model.d=32,64,128         three values: a sweep; several of them make the product
probes.etas=[0.01,0.1]    one value, which is a list: what stands in brackets is never split
probes.names+=rho         the list, and rho
rule+=mine.py:Mine        the runs as they are, and the same with that rule
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from sonde.analysis.runs import only
from sonde.config import SECTIONS, RunConfig, changed, keys, options, parse
from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import shown

_Tree = Mapping[str, Any]
EXAMPLE = "write key=value, for example --set model.L=10"


class UnknownKey(SondeError):
    """No configuration has the key."""


@dataclass(frozen=True)
class Setting:
    """A key and the values it is given, each in turn; `adds` keeps what there is beside them."""

    key: str
    values: tuple[Any, ...]
    adds: bool = False


def narrowed(configs: Iterable[RunConfig], wanted: Mapping[str, Any]) -> list[RunConfig]:
    """The configurations whose values equal the wanted; `variant` stands for the network's variant."""
    described = ((one, keys(one) | {"variant": getattr(one.model, "variant", None)}) for one in configs)
    return only(described, wanted)


def settings(words: Sequence[str]) -> list[Setting]:
    """`key=value`, `key=value,value` and `key+=value`; of `=` for one key the last counts."""
    by_key: dict[tuple[str, object], Setting] = {}
    for position, word in enumerate(words):
        key, equals, text = word.partition("=")
        adds = key.endswith("+")
        key = key.removesuffix("+")
        if not equals or not key:
            raise SondeError(f"--set {word!r}: {EXAMPLE}")
        values = tuple(_value(part) for part in _split(text))
        by_key[key, position if adds else None] = Setting(key, values, adds)
    return list(by_key.values())


def swept(trees: Iterable[_Tree], wanted: Sequence[Setting]) -> list[RunConfig]:
    """Every configuration under every combination of the settings it has a key for; a key that none has is an error.

    The trees have every option.  What comes out twice is one run.
    """
    groups = in_groups(trees, wanted).values()
    return list({config.id: config for group in groups for config in group}.values())


def in_groups(trees: Iterable[_Tree], wanted: Sequence[Setting]) -> dict[str, list[RunConfig]]:
    """The same, by the values that are swept, `model.d=32, optimiser.lr=0.001`: runs of two groups are never averaged.

    Rules are told apart within a group, for that is what studies do.
    """
    if any(setting.key == "seed" for setting in wanted):
        raise SondeError("--set seed=…: choose seeds with --seeds")
    given = [[(setting.key, value) for value in setting.values] for setting in wanted if not setting.adds]
    telling = {setting.key for setting in wanted if len(setting.values) > 1 and setting.key != "rule"}
    present: set[str] = set()
    labelled = [
        (_label(chosen, telling), _with(tree, dict(chosen), present)) for tree in trees for chosen in product(*given)
    ]
    for setting in wanted:
        if setting.adds:
            labelled = list(_with_more(labelled, setting))
        if setting.key not in present:
            raise UnknownKey(f"unknown key {setting.key!r}: {nearest(setting.key, present)}")
    groups: dict[str, dict[str, RunConfig]] = {}
    for label, tree in labelled:
        config = parse(tree)
        groups.setdefault(label, {}).setdefault(config.id, config)
    return {label: list(configs.values()) for label, configs in groups.items()}


def _label(chosen: Iterable[tuple[str, Any]], telling: Collection[str]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in chosen if key in telling)


def _with(tree: _Tree, changes: dict[str, Any], present: set[str]) -> _Tree:
    """Parts are chosen before their options are set."""
    tree = changed(tree, {key: value for key, value in changes.items() if key in SECTIONS})
    has = options(tree)
    present |= has
    return changed(tree, {key: v for key, v in changes.items() if key not in SECTIONS and key in has})


def _with_more(labelled: Sequence[tuple[str, _Tree]], setting: Setting) -> Iterator[tuple[str, _Tree]]:
    part, _, option = setting.key.partition(".")
    for label, tree in labelled:
        there = tree.get(part, {})
        there = there.get(option) if option and isinstance(there, Mapping) else there
        if isinstance(there, list):
            more = [value for value in setting.values if value not in there]
            yield label, changed(tree, {setting.key: [*there, *more]})
            continue
        yield label, tree
        if setting.key in options(tree):
            for value in setting.values:
                added = "" if setting.key == "rule" else _label([(setting.key, value)], [setting.key])
                yield ", ".join(part for part in (label, added) if part), changed(tree, {setting.key: value})


def _split(text: str) -> list[str]:
    """At commas that stand outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for sign in text:
        quoted ^= sign == '"'
        depth += 0 if quoted else (sign in "[{(") - (sign in ")}]")
        if sign == "," and not quoted and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _value(text: str) -> Any:
    """JSON where it is JSON, else text; in a list, words need no quotes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        inside = text.strip()
        if inside.startswith("[") and inside.endswith("]"):
            return [_value(part.strip()) for part in _split(inside[1:-1])]
        return text
