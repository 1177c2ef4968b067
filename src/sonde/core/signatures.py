"""What is known of a stranger's code or data: a digest of the bytes, and a function's keywords as options."""

import hashlib
import inspect
from collections.abc import Callable, Collection
from dataclasses import field, make_dataclass
from typing import Any, TypeVar, get_type_hints

from sonde.core.errors import SondeError

T = TypeVar("T")
Option = tuple[str, Any, Any]
"""Name, type and field: what `dataclasses.make_dataclass` takes."""


def digest(content: bytes) -> str:
    """Short enough to be read, long enough that two contents never share it by chance."""
    return hashlib.sha256(content).hexdigest()[:12]


def options_of(function: Callable[..., Any], named: str, given: Collection[str] = ()) -> list[Option]:
    """Its parameters but the `given` ones; each needs a default, for a configuration is complete without asking."""
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
            raise SondeError(f"{named}: give {parameter.name} a default, it becomes an option{filled}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SondeError(f"{named}: {parameter.name} cannot be named: take away the '/' behind it")
        found.append(option(parameter.name, parameter.default, hints.get(parameter.name)))
    return found


def option(name: str, default: Any, hint: Any = None) -> Option:
    """A field of the type that was written, else of the default's; a whole number may become a broken one."""
    if hint is None:
        kind = type(default)
        others = {int: int | float, tuple: tuple[Any, ...]}
        hint = kind if kind in (bool, float, str) else others.get(kind, Any)
    if default.__class__.__hash__ is None:
        return name, hint, field(default_factory=lambda: default)
    return name, hint, field(default=default)


def configuration(name: str, options: list[Option], base: type[T], thing: Any, **attributes: Any) -> type[T]:
    """A frozen dataclass of that name with these options beside those of its base, documented like the thing."""
    namespace = attributes | {"__doc__": thing.__doc__}
    made = make_dataclass(name, options, bases=(base,), namespace=namespace, frozen=True, kw_only=True)
    made.__module__ = thing.__module__
    assert issubclass(made, base)
    return made


def taken(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that the function has a parameter for."""
    return {name: values[name] for name in inspect.signature(function).parameters if name in values}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(
            function.__init__ if isinstance(function, type) else function,  # type: ignore[misc]
            include_extras=True,
        )
    except Exception:  # an annotation that names nothing there is
        return {}
