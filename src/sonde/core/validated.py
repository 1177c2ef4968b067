"""Configurations that are checked when they are made: a bad value is refused there, by the name of its option."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import TypeAdapter, ValidationError

from sonde.core.errors import SondeError

T = TypeVar("T")


class BadOption(SondeError):
    """A value that an option cannot have."""

    def __init__(self, owner: str, key: str, said: str) -> None:
        super().__init__(f"{owner}: {key}{said}")
        self.key, self.said = key, said

    def under(self, section: str) -> SondeError:
        """The same, with the dotted key that `--set` knows."""
        return SondeError(f"{section}{self.key}{self.said}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def checked(kind: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass whose values have the types its fields name, or do not come to be."""

    def checks(self: Any) -> None:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, value in check(type(self), values).items():
            object.__setattr__(self, name, value)

    kind.__post_init__ = checks  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


def check(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a dataclass's fields in the types they name, one at a time so that every complaint names its key."""
    return {key: _checked(kind, key, value) for key, value in values.items()}


def _checked(kind: Any, key: str, value: Any) -> Any:
    try:
        return _adapter(kind, key).validate_python(value)
    except ValidationError as error:
        why = "; ".join(dict.fromkeys(map(_said, error.errors())))
        raise BadOption(kind.__name__, key, f" = {value!r}: {why[0].lower() + why[1:]}") from None


def _said(problem: Mapping[str, Any]) -> str:
    """What pydantic says, in the words of a command line where it speaks of Python."""
    return "a list is written [a,b]" if problem["type"] == "tuple_type" else str(problem["msg"])


@cache
def _adapter(kind: Any, key: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(kind, include_extras=True)[key])
