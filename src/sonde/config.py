"""A run's complete configuration: frozen inside, checked by pydantic at the edge, hashed into the run id."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, MinLen
from pydantic import TypeAdapter, ValidationError

from sonde.errors import SondeError, nearest, pick
from sonde.models import MODELS, Model
from sonde.network import Signature
from sonde.probes import PROBES, Schedule, epochs_of
from sonde.rules import RULES, Rule
from sonde.tasks import TASKS, Task

CHOICES: dict[str, Mapping[str, type[Any]]] = {"model": MODELS, "rule": RULES, "task": TASKS}


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Adam or AdamW with decoupled weight decay; a constant rate, or a cosine to zero over the epochs."""

    name: Literal["adam", "adamw"] = "adamw"
    lr: Annotated[float, Gt(0)] = 1e-3
    weight_decay: Annotated[float, Ge(0)] = 0.01
    schedule: Literal["constant", "cosine"] = "cosine"


@dataclass(frozen=True, kw_only=True)
class Probing:
    """Which probes look, at which epochs, and at how many test samples.

    `k` is the step of `every_k` and the base of `log_spaced`.  Costly probes have a schedule of their own.
    """

    names: Annotated[tuple[str, ...], MinLen(1)] = (
        "loss",
        "hidden_norm",
        "growth",
        "branch_ratio",
        "branch_cosine",
        "grad_norm",
        "credit_norm",
        "credit_cosine",
        "drift",
    )
    schedule: Schedule = "every_epoch"
    k: Annotated[int, Ge(2)] = 5
    costly: tuple[str, ...] = ("rho", "nudge", "cross_batch_cosine")
    costly_schedule: Schedule = "log_spaced"
    costly_k: Annotated[int, Ge(2)] = 4
    size: Annotated[int, Ge(1)] = 128
    directions: Annotated[int, Ge(1)] = 32  # of rho
    epsilon: Annotated[float, Gt(0)] | None = None  # of rho; by default 1e-3 × RMS(h_l) of each sample
    etas: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (0.001, 0.01, 0.1)  # of nudge

    def due(self, epoch: int, epochs: int) -> list[str]:
        """The probes that look after this epoch of a run of `epochs`."""
        cheap = self.names if epoch in epochs_of(self.schedule, self.k, epochs) else ()
        costly = self.costly if epoch in epochs_of(self.costly_schedule, self.costly_k, epochs) else ()
        return list(dict.fromkeys([*cheap, *costly]))


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes."""

    model: Model
    rule: Rule
    task: Task
    optimiser: Optimiser = Optimiser()
    probes: Probing = Probing()
    batch_size: Annotated[int, Ge(1)] = 128
    epochs: Annotated[int, Ge(1)] = 10
    seed: Annotated[int, Ge(0)] = 42
    precision: Literal["float32", "float64", "bf16"] = "float32"
    log: Literal["epoch", "step"] = "epoch"  # how often the training loss is stored
    scale: Literal["quick", "full"] = "full"

    @property
    def signature(self) -> Signature:
        """What the task asks of the network."""
        task = self.task
        return Signature(shape=task.shape, outputs=task.outputs, classifies=task.classifies)

    @cached_property
    def recipe(self) -> str:
        """Equal for configurations that differ in nothing but the seed."""
        return repr(dataclasses.replace(self, seed=0))

    @cached_property
    def id(self) -> str:
        """Readable, and unique to the configuration: two runs share an id only if they are the same run."""
        seed = _checked(RunConfig, {"seed": self.seed}, "")
        tree = _tree(self) | seed
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
        names = "-".join(tree[part]["name"] for part in CHOICES)
        return f"{names}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def to_tree(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain JSON values; each chosen part carries its name."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in CHOICES:
            tree[field.name] = {"name": _name_of(field.name, value), **dataclasses.asdict(value)}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            tree[field.name] = dataclasses.asdict(value)
        else:
            tree[field.name] = value
    plain: dict[str, Any] = json.loads(json.dumps(tree))
    return plain


_trees: dict[str, dict[str, Any]] = {}


def _tree(config: RunConfig) -> dict[str, Any]:
    """The tree, checked; once for all the seeds of a recipe, whichever of them it has."""
    if config.recipe not in _trees:
        _trees[config.recipe] = to_tree(parse(to_tree(config)))
    return _trees[config.recipe]


def parse(tree: Mapping[str, Any]) -> RunConfig:
    """The configuration a tree of JSON values describes; unknown keys and bad values are refused by name."""
    values = dict(tree)
    for part, table in CHOICES.items():
        if part not in values:
            raise SondeError(f"{part} is missing: choose one of {', '.join(table)}")
        section = values[part]
        section = {"name": section} if isinstance(section, str) else dict(_section(section, part))
        chosen = pick(table, str(section.pop("name", "")), part)
        values[part] = _fill(chosen, section, f"{part}.")
    for part, kind in (("optimiser", Optimiser), ("probes", Probing)):
        if part in values:
            values[part] = _fill(kind, values[part], f"{part}.")
    config: RunConfig = _fill(RunConfig, values, "")
    for name in (*config.probes.names, *config.probes.costly):
        pick(PROBES, name, "probe")
    config.model.check(config.signature)
    return config


def change(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The configuration with dotted keys replaced, checked anew."""
    tree = to_tree(config)
    for key, value in changes.items():
        *path, last = key.split(".")
        section = tree
        for part in path:
            if part not in section:
                raise SondeError(f"unknown key {key!r}: {nearest(key, keys(config))}")
            section = section[part]
        section[last] = value
    return parse(tree)


def keys(config: RunConfig) -> dict[str, Any]:
    """Every dotted key of the configuration with its value; `model`, `rule` and `task` stand for their names."""
    flat: dict[str, Any] = {}
    for key, value in to_tree(config).items():
        if isinstance(value, dict):
            if key in CHOICES:
                flat[key] = value["name"]
            flat |= {
                f"{key}.{inner}": v for inner, v in value.items() if not (key in CHOICES and inner == "name")
            }
        else:
            flat[key] = value
    return flat


def _name_of(part: str, value: object) -> str:
    for name, kind in CHOICES[part].items():
        if type(value) is kind:
            return name
    raise SondeError(f"{type(value).__name__} is not in the table of {part}s: {', '.join(CHOICES[part])}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _section(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SondeError(f"{name}: expected keys and values, got {value!r}")
    return value


def _fill(kind: type[Any], values: Mapping[str, Any], prefix: str) -> Any:
    """A dataclass from plain values."""
    return kind(**_checked(kind, values, prefix))


def _checked(kind: Any, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values of a dataclass's fields, one at a time so that every complaint names its key."""
    _section(values, prefix.rstrip("."))
    fields = {field.name for field in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            raise SondeError(
                f"unknown key {prefix + key!r}: {nearest(prefix + key, {prefix + f for f in fields})}"
            )
    hints = _hints(kind)
    checked = {}
    for key, value in values.items():
        if prefix == "" and key in (*CHOICES, "optimiser", "probes"):
            checked[key] = value
            continue
        try:
            checked[key] = _adapter(hints[key]).validate_python(value)
        except ValidationError as error:
            why = "; ".join(dict.fromkeys(problem["msg"] for problem in error.errors()))
            raise SondeError(f"{prefix + key} = {value!r}: {why[0].lower() + why[1:]}") from None
    return checked
