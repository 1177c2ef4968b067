"""Configuration classes: frozen dataclasses that validate their fields, options from a signature, and optimisers.

Adam, AdamW and SGD are chosen by name; any other class of `torch.optim` is a plugin.
"""

import dataclasses
import hashlib
import inspect
from abc import ABC
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_type_hints

from annotated_types import Ge, Lt
from pydantic import TypeAdapter, ValidationError

from sonde.core.errors import SondeError

_T = TypeVar("_T")


class BadOption(SondeError):
    """A value that an option cannot have.  `key` is the option, `said` the rest of the message."""

    def __init__(self, owner: str, key: str, said: str) -> None:
        super().__init__(f"{owner}: {key}{said}")
        self.key, self.said = key, said

    def under(self, section: str) -> SondeError:
        """The same error with the dotted key of `--set`, such as `model.d`."""
        return SondeError(f"{section}{self.key}{self.said}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def validated(kind: type[_T]) -> type[_T]:
    """Make a frozen, keyword-only dataclass that validates its values against the types of its fields.

        @validated
        class Optimiser:
            lr: Annotated[float, Gt(0)] = 1e-3

    Values are converted as pydantic does (an int becomes a float); what cannot be converted raises `BadOption`.
    """

    def validate(self: Any) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in validate_fields(type(self), values).items():
            object.__setattr__(self, name, value)

    kind.__post_init__ = validate  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


def validate_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and convert values of fields of a dataclass; raise `BadOption` for the first bad one."""
    return {key: _validate(kind, key, value) for key, value in values.items()}


def _validate(kind: Any, key: str, value: Any) -> Any:
    try:
        return _adapter(kind, key).validate_python(value)
    except ValidationError as error:
        why = "; ".join(dict.fromkeys(map(_problem_text, error.errors())))
        raise BadOption(kind.__name__, key, f" = {value!r}: {why[0].lower() + why[1:]}") from None


def _problem_text(problem: Mapping[str, Any]) -> str:
    """Pydantic's message; where it names a Python type, the syntax of the command line."""
    return "a list is written [a,b]" if problem["type"] == "tuple_type" else str(problem["msg"])


@cache
def _adapter(kind: Any, key: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(kind, include_extras=True)[key])


Option = tuple[str, Any, Any]
"""Name, type and field: what `dataclasses.make_dataclass` takes."""


def content_digest(content: bytes) -> str:
    """Twelve hexadecimal digits of the SHA-256: readable, and long enough against collisions by chance."""
    return hashlib.sha256(content).hexdigest()[:12]


def function_options(function: Callable[..., Any], named: str, given: Collection[str] = ()) -> list[Option]:
    """The parameters of a function as options, except the `given` ones; each needs a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise SondeError(f"{named}: its parameters cannot be read; write a function around it") from None
    hints = _hints(function)
    found = []
    for parameter in parameters:
        if parameter.name in given or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            filled = f" (without one, {', '.join(given)} are filled in)" if given else ""
            raise SondeError(f"{named}: give {parameter.name} a default; it becomes an option{filled}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SondeError(f"{named}: {parameter.name} is positional-only: remove the '/' after it")
        found.append(option(parameter.name, parameter.default, hints.get(parameter.name)))
    return found


def option(name: str, default: Any, hint: Any = None) -> Option:
    """A field of the annotated type, else of the type of the default; an int option also accepts a float."""
    if hint is None:
        kind = type(default)
        others = {int: int | float, tuple: tuple[Any, ...]}
        hint = kind if kind in (bool, float, str) else others.get(kind, Any)
    if default.__class__.__hash__ is None:
        return name, hint, field(default_factory=lambda: default)
    return name, hint, field(default=default)


def config_class(name: str, options: list[Option], base: type[_T], thing: Any, **attributes: Any) -> type[_T]:
    """Make a frozen dataclass with these options and those of its base; it has the docstring of `thing`."""
    namespace = attributes | {"__doc__": thing.__doc__}
    made = make_dataclass(name, options, bases=(base,), namespace=namespace, frozen=True, kw_only=True)
    made.__module__ = thing.__module__
    assert issubclass(made, base)
    return made


def accepted_by(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values that the function has a parameter for."""
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(
            function.__init__ if isinstance(function, type) else function,  # type: ignore[misc]
            include_extras=True,
        )
    except Exception:  # an annotation that cannot be resolved
        return {}


Rate = Annotated[float, Ge(0)]
RateSchedule = Literal["constant", "cosine"]

_NOT_OPTIONS = ("self", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize")
"""Parameters that are no options: those that choose an implementation, and the rate, which follows the schedule."""


@validated
class Optimiser:
    """Adam, AdamW (decoupled weight decay) or SGD, with a constant rate or a cosine schedule to zero over the epochs.

    SGD adds the weight decay to the gradient, as `torch.optim.SGD` does.  At rate 0 the network keeps its initial
    weights, and only what the rule owns learns.
    """

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    lr: Rate = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.01
    schedule: RateSchedule = "cosine"
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # of sgd
    nesterov: bool = False  # of sgd

    def refuse_nonsense(self) -> None:
        """Raise where options contradict each other."""
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise SondeError(
                f"optimiser.{'momentum' if self.momentum else 'nesterov'} is an option of sgd, not of {self.name}: "
                "set optimiser.name=sgd, or leave it out"
            )
        if self.nesterov and not self.momentum:
            raise SondeError("optimiser.nesterov needs a momentum: set optimiser.momentum=0.9")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PluginOptimiser(ABC):
    """The configuration of a class with the interface of `torch.optim`; its keyword parameters are the options."""

    lr: Rate = 1e-3
    schedule: RateSchedule = "cosine"

    kind: ClassVar[type[Any]]

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of the class, without the rate."""
        own = PluginOptimiser.__dataclass_fields__
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in own}


def plugin_optimiser(name: str, kind: type[Any]) -> type[PluginOptimiser]:
    """Make the configuration class of an optimiser class; raise where a parameter has no default."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SondeError(f"{name} needs the loss several times per step, which rules do not support: choose another")
    options = []
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.name in _NOT_OPTIONS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            raise SondeError(f"{name}: give its parameter {parameter.name} a default; it becomes an option")
        options.append(option(parameter.name, parameter.default))
    return config_class(name, options, PluginOptimiser, kind, kind=kind)
