"""Plugins: your own models, rules, tasks, probes and optimisers, wherever a built-in one can be named.

A plugin is a class or a function.  It is named on the command line (`file.py:Mine`, `data.npz`,
`package.module:Mine`), registered, handed over as an object, or installed with an entry point.  It needs no line in any
table and no edit of the package.  The keyword parameters of a function become its options.  docs/own.md has one each.

The configuration of a plugin has a `source`, `mine.py:Mine@1f2e3d4c5b6a`: file, name and a digest of the bytes, or the
version of its package.  So the run id covers the code, and a file that changed makes another run.  The engine sends the
bytes along with the configurations, workers import them, and the run's folder keeps the file.  Where an unfinished run
differs in nothing but an edited file, training refuses before it starts.

Reading a store never runs a plugin: a reader knows its name, its options and its source.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from sonde.core.errors import SondeError, nearest
from sonde.core.optimisers import GuestOptimiser, Optimiser, guest_optimiser
from sonde.core.validated import BadOption, check
from sonde.metrics.probes import PROBES
from sonde.models import MODELS
from sonde.models.plugin_model import made
from sonde.plugins import source as sources
from sonde.plugins.source import Carried, Source
from sonde.rules import RULES
from sonde.tasks import TASKS
from sonde.tasks.arrays import from_function, npz

OURS: dict[str, Mapping[str, Any]] = {
    "model": MODELS,
    "rule": RULES,
    "task": TASKS,
    "probe": PROBES,
    "optimiser": {name: partial(Optimiser, name=name) for name in ("adam", "adamw", "sgd")},
}
RESERVED = ("name", "source")  # keys that say which part it is
METHOD = {"model": "build", "rule": "credits", "task": "load"}
"""What a class of each kind cannot do without."""

RULE = ("route", "reads_top_gradient", "credit_scale", "penalty", "init", "update")
"""What training asks of a rule beside its credits."""


class Guest(NamedTuple):
    """What a stranger is called, where it comes from, and the class of its configuration; of a probe, the function."""

    name: str
    source: Source
    kind: Any


_registered: dict[tuple[str, str], Guest] = {}  # by part and name
_found: dict[tuple[str, str, str], Guest] = {}  # by part, name and source
_taken_in: dict[tuple[str, str, str], Any] = {}  # what each of these was made of
_by_kind: dict[Any, Guest] = {}  # by what was found and what was made of it


def register(part: str, name: str, thing: Any) -> Any:
    """Let a name stand for a class or function of one's own: `sonde.register("rule", "mine", Mine)`; returns it."""
    _check_part(part)
    _check_name(part, name)
    _registered[part, name] = _take_object(part, thing, name)
    return thing


def find(part: str, reference: str) -> Guest:
    """The guest that a reference names: registered, in a file, in a module, or installed with an entry point."""
    _check_part(part)
    if (part, reference) in _registered:
        return _registered[part, reference]
    if part == "task" and reference.endswith(".npz"):
        return _data(sources.of_data(reference))
    where, colon, name = reference.rpartition(":")
    if colon and name.isidentifier():
        at = Path(where).expanduser()
        source = sources.of_file(at, name) if where.endswith(".py") else sources.of_module(where, name)
        return _take_in(part, sources.thing_of(source), source)
    if reference.endswith(".py"):
        raise SondeError(f"{part} {reference!r}: say what in the file is meant, as {reference}:Name")
    for entry in _entry_points(part):
        if entry.name == reference:
            return _installed(part, entry)
    raise SondeError(
        f"unknown {part} {reference!r}: {nearest(reference, names(part))}; one of your own is named as file.py:Name"
    )


def known(part: str, name: str, text: str) -> Guest:
    """The guest that a configuration names by its source; a probe has no other name."""
    source = Source.parse(text)
    key = part, name or _last(source), text
    if key not in _found:
        return _data(source) if source.is_data else _take_in(part, sources.thing_of(source), source, name)
    return _found[key]


def named(part: str, name: str, text: str) -> Guest | None:
    """The guest of this source, if the user named it or handed it over in this process.  Nothing is imported."""
    return _found.get((part, name or text.partition("@")[0].rpartition(":")[2].rpartition(".")[2], text))


def look(part: str, reference: str) -> Source:
    """The source of what a reference names, without running it."""
    _check_part(part)
    if (part, reference) in _registered:
        return _registered[part, reference].source
    return sources.look(reference)


def of(part: str, kind: Any) -> Guest:
    """The guest that was handed over: its class or function."""
    if kind not in _by_kind:
        _take_object(part, kind)
    return _by_kind[kind]


def guest(part: str, what: Any, **options: Any) -> Any:
    """A part of a configuration from a file, a function or a class: `sonde.guest("task", "data.npz", test=0.3)`."""
    kind = (find(part, what) if isinstance(what, str) else of(part, what)).kind
    for key in options:
        if key not in (fields := [field.name for field in dataclasses.fields(kind)]):
            raise SondeError(f"unknown key {f'{part}.{key}'!r}: {nearest(key, fields)}")
    try:
        return kind(**check(kind, options))
    except BadOption as bad:
        raise bad.under(f"{part}.") from None


def handed_over(part: str, value: Any) -> Any:
    """A part of a configuration as it was handed over; a function that makes a network or arrays becomes a part."""
    if isinstance(value, str):
        return OURS[part][value]() if value in OURS[part] else find(part, value).kind()
    if inspect.isfunction(value) or isinstance(value, type):
        if dataclasses.is_dataclass(value) and isinstance(value, type):
            raise SondeError(f"{part}: hand over {value.__name__}(…), not the class")
        return of(part, value).kind()
    if isinstance(value, nn.Module):
        raise SondeError(
            f"{part}: hand over a function that makes the {type(value).__name__}, so that the seed decides its weights"
        )
    of(part, type(value))
    try:
        options = check(type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    except BadOption as bad:
        raise bad.under(f"{part}.") from None
    return dataclasses.replace(value, **options)


def names(part: str) -> list[str]:
    """Ours, those that were registered, and those that are installed."""
    registered = [name for kind, name in _registered if kind == part]
    return list(dict.fromkeys([*OURS[part], *registered, *(entry.name for entry in _entry_points(part))]))


def guests(part: str) -> Iterator[Guest]:
    """Those that were registered or are installed."""
    for name in names(part):
        if name not in OURS[part]:
            yield find(part, name)


def carried(texts: Iterable[str]) -> dict[str, Carried]:
    """What another process must be told before it reads configurations with these sources."""
    return sources.carried(map(Source.parse, texts))


def copies(texts: Iterable[str]) -> dict[str, bytes]:
    """The files of code behind the sources, for the run's folder."""
    return sources.copies(map(Source.parse, texts))


receive = sources.receive


def _data(source: Source) -> Guest:
    name = re.sub(r"\W", "_", Path(source.where).stem, flags=re.ASCII)
    key = "task", name, str(source)
    if key not in _found:
        kind = npz(name, sources.path_of(source), source.stamp or "")
        _found[key] = _by_kind[kind] = Guest(name, source, kind)
    return _found[key]


def _installed(part: str, entry: EntryPoint) -> Guest:
    source = sources.of_module(entry.module, entry.attr)
    return _take_in(part, sources.thing_of(source), source, entry.name)


def _last(source: Source) -> str:
    return (source.name or "").rpartition(".")[2]


def _take_object(part: str, thing: Any, name: str = "") -> Guest:
    """As `_take_in`, but no second one that a function made: its file does not say how it differs from the first."""
    source = sources.of_object(thing)
    first = _taken_in.get((part, name or _last(source), str(source)), thing)
    is_local = getattr(thing, "__closure__", None) or "<locals>" in thing.__qualname__
    if first is not thing and is_local and not sources.stands_in_its_module(thing):
        raise SondeError(
            f"{part} {thing.__qualname__}: another one that the same function made was handed over before, and runs "
            "could not tell them apart: make it once, and make what differs a keyword parameter of the function or a "
            "field of the class; it becomes an option of the run, and part of its id"
        )
    return _take_in(part, thing, source, name)


def _take_in(part: str, thing: Any, source: Source, name: str = "") -> Guest:
    """Known from now on; what was made of a function stays the same as long as its source does."""
    name = name or _last(source)
    _check_name(part, name)
    key = part, name, str(source)
    is_itself = key in _found and _found[key].kind is _taken_in[key]  # a class, which may be imported anew
    if key not in _found or (is_itself and thing is not _taken_in[key]):
        kind = _adapted(part, thing, name)
        _found[key] = _by_kind[kind] = Guest(name, source, kind)
        _taken_in[key] = thing
    _by_kind[thing] = _found[key]
    return _found[key]


def _adapted(part: str, thing: Any, name: str) -> Any:
    """The class of the guest's configuration; of a probe, the probe itself."""
    if part == "probe":
        if not inspect.isfunction(thing):
            raise SondeError(f"probe {name}: a probe is a function from a snapshot to readings")
        return thing
    if part == "optimiser":
        if not (isinstance(thing, type) and issubclass(thing, Optimizer)):
            raise SondeError(f"optimiser {name}: an optimiser is a class like those of torch.optim")
        return guest_optimiser(name, thing)
    is_class = isinstance(thing, type)
    if part == "model" and (inspect.isfunction(thing) or (is_class and issubclass(thing, nn.Module))):
        return _plain(part, made(name, thing))
    if part == "task" and inspect.isfunction(thing):
        return _plain(part, from_function(name, thing))
    if not is_class:
        ways = {"rule": "a class with `credits`", "model": "a function or a class with `build`"}
        raise SondeError(
            f"{part} {name} is a {type(thing).__name__}: it must be {ways.get(part, 'a class with `load`')}"
        )
    if not callable(getattr(thing, METHOD[part], None)):
        raise SondeError(f"{part} {name} has no method {METHOD[part]!r}: docs/own.md shows a complete one")
    if part == "rule" and (missing := [name for name in RULE if not hasattr(thing, name)]):
        raise SondeError(
            f"rule {name} does not say {', '.join(missing)}: write class {name}(sonde.rules.Rule), or say it"
        )
    return _plain(part, _frozen(thing))


def _frozen(kind: type[Any]) -> type[Any]:
    """A class without a constructor of its own becomes a frozen dataclass, its annotated attributes the options."""
    if "__dataclass_params__" in vars(kind):
        if not vars(kind)["__dataclass_params__"].frozen:
            raise SondeError(
                f"{kind.__name__} may change after its run has a name: write @dataclass(frozen=True, kw_only=True) "
                "above it"
            )
        return kind
    if "__init__" in vars(kind):
        raise SondeError(
            f"{kind.__name__} has a constructor of its own: write @dataclass(frozen=True, kw_only=True) above it, and "
            "its options as fields"
        )
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


def _plain(part: str, kind: type[Any]) -> type[Any]:
    """Check that every option has a name and a type that a configuration can hold."""
    for field in dataclasses.fields(kind):
        if field.name in RESERVED:
            raise SondeError(f"{part} {kind.__name__}: no option may be called {field.name!r}: rename it")
    try:
        check(kind, {field.name: field.default for field in dataclasses.fields(kind) if _has_default(field)})
    except BadOption as bad:
        raise bad.under(f"{part}.") from None
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        why = f"{type(error).__name__}: {said}"
        raise SondeError(f"{part} {kind.__name__}: its options cannot be read ({why})") from error
    return kind


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING


def _check_part(part: str) -> None:
    if part not in OURS:
        raise SondeError(f"unknown part {part!r}: {nearest(part, OURS)}")


def _check_name(part: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name, flags=re.ASCII):
        raise SondeError(f"{part} {name!r}: a name is letters, digits and '_', for it is part of the run's")
    if name in OURS[part]:
        raise SondeError(f"{part} {name!r}: Sonde has one of that name; call yours otherwise")


def _entry_points(part: str) -> Iterable[EntryPoint]:
    return entry_points(group=f"sonde.{part}s")


__all__ = [
    "Carried",
    "Guest",
    "GuestOptimiser",
    "carried",
    "copies",
    "find",
    "guest",
    "guests",
    "handed_over",
    "known",
    "look",
    "named",
    "names",
    "of",
    "receive",
    "register",
]
