"""Narrow a study: `--only key=value` keeps some of its runs."""

import json
from collections.abc import Sequence
from typing import Any

from sonde.config import RunConfig, keys
from sonde.errors import SondeError, nearest
from sonde.studies.settings import UnknownKey


def only(configs: Sequence[RunConfig], choices: dict[str, Any]) -> list[RunConfig]:
    """The configurations whose values equal the choices; `variant` stands for the model's variant."""
    _check_keys(configs, choices, extra={"variant"})

    def values(config: RunConfig) -> dict[str, Any]:
        return {**keys(config), "variant": getattr(config.model, "variant", None)}

    for key, wanted in choices.items():
        present = {json.dumps(values(config)[key]) for config in configs if key in values(config)}
        configs = [config for config in configs if key in values(config) and values(config)[key] == wanted]
        if not configs:
            raise SondeError(
                f"--only {key}={wanted}: no run has that value; there are {', '.join(sorted(present))}"
            )
    return list(configs)


def _check_keys(configs: Sequence[RunConfig], wanted: dict[str, Any], extra: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    known = {key for config in configs for key in keys(config)} | extra
    for key in wanted:
        if key not in known:
            raise UnknownKey(f"unknown key {key!r}: {nearest(key, known)}")


def differences(a: dict[str, Any], b: dict[str, Any], ignore: Sequence[str] = ("seed",)) -> list[str]:
    """Dotted keys in which two configuration trees differ, with both values."""

    def flat(tree: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in tree.items():
            out |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        return out

    left, right = flat(a), flat(b)
    return [
        f"{key} = {left.get(key)!r} instead of {right.get(key)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key) and key not in ignore
    ]
