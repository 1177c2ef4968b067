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
from sonde.core.validated import BadOption, Optimiser, plugin_optimiser, validate_fields
from sonde.metrics.probes import PROBES
from sonde.models import MODELS
from sonde.models.model import model_from_function
from sonde.plugins import source as sources
from sonde.plugins.source import Carried as Carried
from sonde.plugins.source import Source
from sonde.plugins.source import carried as carried
from sonde.plugins.source import copies as copies
from sonde.plugins.source import import_file as import_file
from sonde.plugins.source import receive as receive
from sonde.rules import RULES
from sonde.tasks import TASKS
from sonde.tasks.task import from_function, npz

BUILT_IN: dict[str, Mapping[str, Any]] = {
    "model": MODELS,
    "rule": RULES,
    "task": TASKS,
    "probe": PROBES,
    "optimiser": {name: partial(Optimiser, name=name) for name in ("adam", "adamw", "sgd")},
}
_RESERVED = ("name", "source")  # keys that say which part it is
_METHOD = {"model": "build", "rule": "credits", "task": "load"}
"""The method that a class of each kind must have."""

_OF_RULE = ("route", "reads_top_gradient", "credit_scale", "penalty", "init", "update")
"""What training uses of a rule beside its credits."""


class Plugin(NamedTuple):
    """A plugin's name, its source, and its configuration class; for a probe, the function."""

    name: str
    source: Source
    kind: Any


_registered: dict[tuple[str, str], Plugin] = {}  # by part and name
_found: dict[tuple[str, str, str], Plugin] = {}  # by part, name and source
_made_from: dict[tuple[str, str, str], Any] = {}  # by the same, the class or function that was given
_by_kind: dict[Any, Plugin] = {}  # by the class or function that was given, and by the configuration class


def register(part: str, name: str, thing: Any) -> Any:
    """Give a class or function a name: `sonde.register("rule", "mine", Mine)`.  Returns the class or function."""
    _check_part(part)
    _check_name(part, name)
    _registered[part, name] = _load_object(part, thing, name)
    return thing


def load_plugin(part: str, reference: str) -> Plugin:
    """Load the plugin that a reference names: registered, in a file, in a module, or installed."""
    _check_part(part)
    if (part, reference) in _registered:
        return _registered[part, reference]
    if part == "task" and reference.endswith(".npz"):
        return _data(sources.source_of_data(reference))
    where, colon, name = reference.rpartition(":")
    if colon and name.isidentifier():
        at = Path(where).expanduser()
        source = (
            sources.import_file_source(at, name) if where.endswith(".py") else sources.import_module_source(where, name)
        )
        return _load(part, sources.import_thing(source), source)
    if reference.endswith(".py"):
        raise SondeError(f"{part} {reference!r}: name the object in the file: {reference}:Name")
    for entry in _entry_points(part):
        if entry.name == reference:
            source = sources.import_module_source(entry.module, entry.attr)
            return _load(part, sources.import_thing(source), source, entry.name)
    hint = nearest(reference, names(part))
    raise SondeError(
        f"unknown {part} {reference!r}: {hint}{'' if hint.endswith('?') else '.'} For your own, write file.py:Name"
    )


def load_by_source(part: str, name: str, text: str) -> Plugin:
    """Load the plugin that a configuration names by its source; a probe has no other name."""
    source = Source.parse(text)
    key = part, name or _last(source), text
    if key in _found:
        return _found[key]
    return _data(source) if source.is_data else _load(part, sources.import_thing(source), source, name)


def loaded(part: str, name: str, text: str) -> Plugin | None:
    """The plugin of this source if this process has loaded it, else None.  Nothing is imported."""
    return _found.get((part, name or text.partition("@")[0].rpartition(":")[2].rpartition(".")[2], text))


def peek(part: str, reference: str) -> Source:
    """The source of what a reference names, without running it."""
    _check_part(part)
    if (part, reference) in _registered:
        return _registered[part, reference].source
    return sources.reference_source(reference)


def plugin_of(part: str, kind: Any) -> Plugin:
    """The plugin of a class or function."""
    if kind not in _by_kind:
        _load_object(part, kind)
    return _by_kind[kind]


def plugin(part: str, what: Any, **options: Any) -> Any:
    """A part of a configuration from a file, a function or a class: `sonde.plugin("task", "data.npz", test=0.3)`."""
    kind = (load_plugin(part, what) if isinstance(what, str) else plugin_of(part, what)).kind
    for key in options:
        if key not in (fields := [field.name for field in dataclasses.fields(kind)]):
            raise SondeError(f"unknown key {f'{part}.{key}'!r}: {nearest(key, fields)}")
    try:
        return kind(**validate_fields(kind, options))
    except BadOption as bad:
        raise bad.under(f"{part}.") from None


def as_part(part: str, value: Any) -> Any:
    """Turn what a user passed into a part of a configuration: a name, a function, a class's object."""
    if isinstance(value, str):
        return BUILT_IN[part][value]() if value in BUILT_IN[part] else load_plugin(part, value).kind()
    if inspect.isfunction(value) or isinstance(value, type):
        if dataclasses.is_dataclass(value) and isinstance(value, type):
            raise SondeError(f"{part}: pass {value.__name__}(…), not the class")
        return plugin_of(part, value).kind()
    if isinstance(value, nn.Module):
        raise SondeError(
            f"{part}: pass a function that makes the {type(value).__name__}, so that the seed determines its weights"
        )
    plugin_of(part, type(value))
    try:
        options = validate_fields(type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    except BadOption as bad:
        raise bad.under(f"{part}.") from None
    return dataclasses.replace(value, **options)


def names(part: str) -> list[str]:
    """The names of built-in, registered and installed parts."""
    registered = [name for kind, name in _registered if kind == part]
    return list(dict.fromkeys([*BUILT_IN[part], *registered, *(entry.name for entry in _entry_points(part))]))


def load_available(part: str) -> Iterator[Plugin]:
    """Load and yield the plugins that are registered or installed."""
    for name in names(part):
        if name not in BUILT_IN[part]:
            yield load_plugin(part, name)


def _data(source: Source) -> Plugin:
    name = re.sub(r"\W", "_", Path(source.where).stem, flags=re.ASCII)
    key = "task", name, str(source)
    if key not in _found:
        kind = npz(name, sources.path_of(source), source.stamp or "")
        _found[key] = _by_kind[kind] = Plugin(name, source, kind)
    return _found[key]


def _last(source: Source) -> str:
    return (source.name or "").rpartition(".")[2]


def _load_object(part: str, thing: Any, name: str = "") -> Plugin:
    """As `_load`; refuses a second object that a function made, because its file does not tell it from the first."""
    source = sources.source_of_object(thing)
    first = _made_from.get((part, name or _last(source), str(source)), thing)
    is_local = getattr(thing, "__closure__", None) or "<locals>" in thing.__qualname__
    if first is not thing and is_local and not sources.stands_in_its_module(thing):
        raise SondeError(
            f"{part} {thing.__qualname__}: its function has made another one before, and the two would have the same "
            "run id: call it once, and turn what differs into a keyword parameter of the function or a field of the "
            "class; it becomes an option of the run and part of its id"
        )
    return _load(part, thing, source, name)


def _load(part: str, thing: Any, source: Source, name: str = "") -> Plugin:
    """Make the plugin of a class or function; for the same source it stays the same object."""
    name = name or _last(source)
    _check_name(part, name)
    key = part, name, str(source)
    is_itself = key in _found and _found[key].kind is _made_from[key]  # a class, which may be imported again
    if key not in _found or (is_itself and thing is not _made_from[key]):
        kind = _adapted(part, thing, name)
        _found[key] = _by_kind[kind] = Plugin(name, source, kind)
        _made_from[key] = thing
    _by_kind[thing] = _found[key]
    return _found[key]


def _adapted(part: str, thing: Any, name: str) -> Any:
    """The plugin's configuration class; for a probe, the function itself."""
    if part == "probe":
        if not inspect.isfunction(thing):
            raise SondeError(f"probe {name}: a probe is a function from a snapshot to readings")
        return thing
    if part == "optimiser":
        if not (isinstance(thing, type) and issubclass(thing, Optimizer)):
            raise SondeError(f"optimiser {name}: an optimiser is a class like those of torch.optim")
        return plugin_optimiser(name, thing)
    is_class = isinstance(thing, type)
    if part == "model" and (inspect.isfunction(thing) or (is_class and issubclass(thing, nn.Module))):
        return _checked_options(part, model_from_function(name, thing))
    if part == "task" and inspect.isfunction(thing):
        return _checked_options(part, from_function(name, thing))
    if not is_class:
        ways = {"rule": "a class with `credits`", "model": "a function or a class with `build`"}
        raise SondeError(
            f"{part} {name} is a {type(thing).__name__}: it must be {ways.get(part, 'a class with `load`')}"
        )
    if not callable(getattr(thing, _METHOD[part], None)):
        raise SondeError(f"{part} {name} has no method {_METHOD[part]!r}: docs/own.md shows a complete one")
    if part == "rule" and (missing := [name for name in _OF_RULE if not hasattr(thing, name)]):
        raise SondeError(
            f"rule {name} does not define {', '.join(missing)}: write class {name}(sonde.rules.Rule), or define it"
        )
    return _checked_options(part, _frozen(thing))


def _frozen(kind: type[Any]) -> type[Any]:
    """A class without its own constructor becomes a frozen dataclass; its annotated attributes are the options."""
    if "__dataclass_params__" in vars(kind):
        if not vars(kind)["__dataclass_params__"].frozen:
            raise SondeError(
                f"{kind.__name__} is mutable, so its options may change after the run has its id: write "
                "@dataclass(frozen=True, kw_only=True) above it"
            )
        return kind
    if "__init__" in vars(kind):
        raise SondeError(
            f"{kind.__name__} has its own constructor: write @dataclass(frozen=True, kw_only=True) above it, and "
            "its options as fields"
        )
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


def _checked_options(part: str, kind: type[Any]) -> type[Any]:
    """Check that every option has a name and a type that a configuration can hold."""
    for field in dataclasses.fields(kind):
        if field.name in _RESERVED:
            raise SondeError(f"{part} {kind.__name__}: no option may be called {field.name!r}: rename it")
    given = [field for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING]
    try:
        validate_fields(kind, {field.name: field.default for field in given})
    except BadOption as bad:
        raise bad.under(f"{part}.") from None
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        why = f"{type(error).__name__}: {said}"
        raise SondeError(f"{part} {kind.__name__}: its options cannot be read ({why})") from error
    return kind


def _check_part(part: str) -> None:
    if part not in BUILT_IN:
        raise SondeError(f"unknown part {part!r}: {nearest(part, BUILT_IN)}")


def _check_name(part: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z]\w*", name, flags=re.ASCII):
        raise SondeError(f"{part} {name!r}: a name has letters, digits and '_', because it is part of the run's id")
    if name in BUILT_IN[part]:
        raise SondeError(f"{part} {name!r}: Sonde has a {part} of that name; choose another")


def _entry_points(part: str) -> Iterable[EntryPoint]:
    return entry_points(group=f"sonde.{part}s")
