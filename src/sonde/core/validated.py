"""Frozen dataclasses that validate their fields: a bad value raises `BadOption`, which names the option."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, dataclass_transform, get_type_hints

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
