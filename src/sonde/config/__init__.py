"""A run's complete configuration: frozen, validated when it is made, hashed into the run id.

A configuration is a tree of frozen dataclasses: model, rule, task, optimiser, probes, and the options of the run.
`to_tree` and `parse` turn it into JSON and back; `parse` refuses unknown keys and bad values by name.  Derived values
are never fields.  Wherever runs are compared the tree is flat: it has dotted keys, and the value of `model`, `rule` and
`task` is a name.  `--set`, `--only`, `--factor` and all messages use these keys.

A recipe is a configuration without its seed: runs of one recipe are replicates.

A configuration that is read from a store is data: built-in names and plain values, never code.  A stored plugin is
known by its source and is not imported.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BeforeValidator

from sonde import plugins
from sonde.core.errors import SondeError, nearest
from sonde.core.run_ids import (
    IN_LABEL,
    RUN_OPTIONS,
    config_digest,
    first_options,
    flatten,
    lasting,
    recipe_of,
    run_id,
    with_settings,
)
from sonde.core.validated import BadOption, PluginOptimiser, validate_fields, validated
from sonde.core.validated import Optimiser as Optimiser
from sonde.metrics.probes import PROBES, Probe, Schedule, epochs_of
from sonde.models import MODELS, Model
from sonde.network import Signature
from sonde.rules import RULES, Rule
from sonde.tasks import TASKS, Task

CHOICES: dict[str, Mapping[str, type[Any]]] = {"model": MODELS, "rule": RULES, "task": TASKS}
SECTIONS = (*CHOICES, "optimiser", "probes")


def _probe_name(probe: Any) -> Any:
    """The name of a built-in probe, the source of a plugin; anything else is returned and refused later."""
    if callable(probe):
        return str(plugins.plugin_of("probe", probe).source)
    if not isinstance(probe, str) or probe in PROBES:
        return probe
    if "@" in probe:
        plugins.load_by_source("probe", "", probe)
        return probe
    return str(plugins.load_plugin("probe", probe).source)


ProbeName = Annotated[str, BeforeValidator(_probe_name)]


def probe_of(name: str) -> Probe:
    """The function behind a name in `probes.names` or `probes.costly`."""
    probe: Probe = PROBES[name] if name in PROBES else plugins.load_by_source("probe", "", name).kind
    return probe


@validated
class Probing:
    """Which probes measure, at which epochs, and on how many test samples.

    `k` is the step of `every_k` and the base of `log_spaced`.  Costly probes have their own schedule.  Loss and
    accuracy on the whole test set are measured after every `test_every`-th epoch, the first and the last.
    """

    names: Annotated[tuple[ProbeName, ...], MinLen(1)] = (
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
    costly: tuple[ProbeName, ...] = ("rho", "nudge", "cross_batch_cosine")
    costly_schedule: Schedule = "log_spaced"
    costly_k: Annotated[int, Ge(2)] = 4
    size: Annotated[int, Ge(1)] = 128
    directions: Annotated[int, Ge(1)] = 32  # of rho
    epsilon: Annotated[float, Gt(0)] | None = None  # of rho; by default 1e-3 × RMS(h_l) of each sample
    etas: Annotated[tuple[Annotated[float, Gt(0)], ...], MinLen(1)] = (0.001, 0.01, 0.1)  # of nudge
    test_every: Annotated[int, Ge(1)] = 1

    def due(self, epoch: int, epochs: int) -> list[str]:
        """The probes that measure after this epoch of a run of `epochs`."""
        cheap = self.names if epoch in epochs_of(self.schedule, self.k, epochs) else ()
        costly = self.costly if epoch in epochs_of(self.costly_schedule, self.costly_k, epochs) else ()
        return list(dict.fromkeys([*cheap, *costly]))

    def tests(self, epoch: int, epochs: int) -> bool:
        """Whether the whole test set is evaluated after this epoch of a run of `epochs`."""
        return epoch in epochs_of("every_k", self.test_every, epochs)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes.

    A plugin is passed like a built-in model, rule or task; so is a function that makes a network or arrays.
    """

    model: Model
    rule: Rule
    task: Task
    optimiser: Optimiser | PluginOptimiser = Optimiser()
    probes: Probing = Probing()  # noqa: RUF009
    batch_size: Annotated[int, Ge(1), Le(10**9)] = 128
    epochs: Annotated[int, Ge(1), Le(10**9)] = 10
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] = 42
    precision: Literal["float32", "float64", "bf16"] = "float32"
    log: Literal["epoch", "step"] = "epoch"  # how often the training loss is stored
    scale: Literal["quick", "full"] = "full"

    def __post_init__(self) -> None:
        given = {key: getattr(self, key) for key in RUN_OPTIONS}
        try:
            accepted = validate_fields(RunConfig, given)
        except BadOption as bad:
            raise bad.under("") from None
        for part, table in CHOICES.items():
            value = getattr(self, part)
            if type(value) not in table.values():
                accepted[part] = plugins.as_part(part, value)
        if not isinstance(given := getattr(self, "optimiser"), Optimiser | PluginOptimiser):  # noqa: B009
            accepted["optimiser"] = plugins.as_part("optimiser", given)
        for key, value in accepted.items():
            object.__setattr__(self, key, value)
        if isinstance(self.optimiser, Optimiser):
            self.optimiser.refuse_nonsense()
        check_fit = getattr(self.model, "check", None)
        if check_fit is not None:
            check_fit(self.signature)

    @property
    def signature(self) -> Signature:
        """The shapes that the task demands of the network."""
        task = self.task
        classifies = bool(getattr(task, "classifies", True))
        return Signature(shape=tuple(task.shape), outputs=task.outputs, classifies=classifies)

    @cached_property
    def recipe(self) -> str:
        """Equal for configurations that differ only in the seed."""
        return recipe_of(to_tree(self))

    @property
    def id(self) -> str:
        """The run's id: readable, and equal for equal configurations."""
        return self._identity[0]

    @property
    def digest(self) -> str:
        """The whole SHA-256 of the configuration: two runs are the same run only if they share it."""
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[str, str]:
        tree = to_tree(self)
        return run_id(tree, whole := config_digest(tree)), whole

    @property
    def sources(self) -> list[str]:
        """The sources of its plugins; empty if all parts are built in."""
        parts = [source_of(part, getattr(self, part)) for part in (*CHOICES, "optimiser")]
        probes = [name for name in (*self.probes.names, *self.probes.costly) if name not in PROBES]
        return list(dict.fromkeys([*(source for source in parts if source), *probes]))


def to_tree(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain JSON values, as it is stored and hashed; each chosen part has its name in it.

    An option that was added after the part's first release is left out at its default: see `sonde.core.run_ids`.
    """
    whole = whole_tree(config)
    tree: dict[str, Any] = {}
    for part in SECTIONS:
        first = first_options(part, whole[part].get("name", ""), type(getattr(config, part)))
        tree[part] = lasting(whole[part], _defaults_of(getattr(config, part)), first)
    rest = {key: value for key, value in whole.items() if key not in SECTIONS}
    return tree | lasting(rest, _defaults_of(config), first_options("", ""))


def younger(config: RunConfig) -> dict[str, Any]:
    """The options that the stored tree leaves out at their defaults: dotted key → default."""
    found = {key: value for key, value in defaults(RunConfig).items() if key not in (*SECTIONS, *RUN_OPTIONS)}
    for part in SECTIONS:
        value = getattr(config, part)
        first = first_options(part, name_of(part, value) if part in CHOICES else "", type(value))
        known = _defaults_of(value)
        found |= {f"{part}.{key}": known[key] for key in known if first is not None and key not in first}
    return found


def whole_tree(config: RunConfig) -> dict[str, Any]:
    """Every option, as plain JSON values."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in SECTIONS:
            tree[field.name] = _heading(field.name, value) | {
                option.name: _json(getattr(value, option.name)) for option in dataclasses.fields(value)
            }
        else:
            tree[field.name] = _json(value)
    return tree


def _heading(part: str, value: Any) -> dict[str, Any]:
    """The name of a part, the source of a plugin, and a version other than 1."""
    if part == "probes" or isinstance(value, Optimiser):
        return {}
    source = source_of(part, value)
    version = getattr(type(value), "version", 1) if source is None else 1
    return (
        {"name": name_of(part, value)}
        | ({} if source is None else {"source": source})
        | ({} if version == 1 else {"version": version})
    )


def _json(value: Any) -> Any:
    return [_json(one) for one in value] if isinstance(value, tuple | list) else value


def _defaults_of(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    return defaults(kind)


@cache
def defaults(kind: Any) -> dict[str, Any]:
    """The defaults of a part's options, as plain JSON values; options without one are left out."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = _json(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = _json(field.default_factory())
    return found


def name_of(part: str, value: object) -> str:
    """The name of a chosen part, in the table of built-in ones or of the plugin."""
    for name, kind in CHOICES.get(part, {}).items():
        if type(value) is kind:
            return name
    if isinstance(value, Optimiser):
        return value.name
    return plugins.plugin_of(part, type(value)).name


def label_of(part: str, value: Any) -> str:
    """What figures and tables call a part: its label, else its name; for a rule, with the options not at defaults."""
    label = str(getattr(value, "label", None) or name_of(part, value))
    if part != "rule":
        return label
    known, said = _defaults_of(value), IN_LABEL.get(name_of(part, value), ())
    chosen = {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    other = {key: v for key, v in chosen.items() if key not in said and (key not in known or known[key] != v)}
    return with_settings(label, other)


def source_of(part: str, value: object) -> str | None:
    """The source of a plugin; None for a built-in part."""
    if type(value) in CHOICES.get(part, {}).values() or isinstance(value, Optimiser):
        return None
    return str(plugins.plugin_of(part, type(value)).source)


def parse(tree: Mapping[str, Any]) -> RunConfig:
    """Make a configuration from a tree of JSON values; unknown keys and bad values are refused by name."""
    values = dict(tree)
    _refuse_unknown(values, [field.name for field in dataclasses.fields(RunConfig)], "")
    for part in SECTIONS:
        if part in values:
            kind, options = _chosen(part, values[part])
            values[part] = _fill(kind, options, f"{part}.")
        elif part in CHOICES:
            raise SondeError(f"{part} is missing: choose one of {', '.join(CHOICES[part])}")
    return RunConfig(**values)


def _chosen(part: str, section: Any) -> tuple[Any, dict[str, Any]]:
    """The configuration class of a part, and its given options."""
    if isinstance(section, str) and part != "probes":
        section = {"name": section}
    if not isinstance(section, Mapping):
        raise SondeError(f"{part}: expected keys and values, got {section!r}")
    options = dict(section)
    if part == "probes":
        return Probing, options
    name, source = str(options.get("name", "")), options.pop("source", None)
    if part == "optimiser" and source is None and not _is_reference(name):
        return Optimiser, options
    options.pop("name", None)
    if source is not None:
        return plugins.load_by_source(part, name, str(source)).kind, options
    kind = CHOICES.get(part, {}).get(name) or plugins.load_plugin(part, name).kind
    refuse_version(part, name, kind, options.pop("version", getattr(kind, "version", 1)))
    return kind, options


def refuse_version(part: str, name: str, kind: type[Any], version: Any) -> None:
    """Raise an error if a part of this version computes something else than today's."""
    if version != (now := getattr(kind, "version", 1)):
        raise SondeError(
            f"{part}.version = {version!r}: this Sonde has version {now} of {name}, which computes something else: use "
            "the Sonde that its manifest names"
        )


def _is_reference(name: str) -> bool:
    """Whether an optimiser's name is that of a plugin."""
    return ":" in name or (name not in plugins.BUILT_IN["optimiser"] and name in plugins.names("optimiser"))


def _fill(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    """Make a dataclass from plain values."""
    fields = [field.name for field in dataclasses.fields(kind)]
    _refuse_unknown(values, fields, prefix)
    for key in fields:
        if key not in values and key not in defaults(kind):
            raise SondeError(f"{prefix}{key} has no default: set it")
    try:
        return kind(**validate_fields(kind, values))
    except BadOption as bad:
        raise bad.under(prefix) from None


def _refuse_unknown(values: Mapping[str, Any], fields: list[str], prefix: str) -> None:
    for key in values:
        if key not in fields:
            raise SondeError(f"unknown key {prefix + key!r}: {nearest(prefix + key, {prefix + f for f in fields})}")


def change(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The configuration with dotted keys replaced, validated again."""
    return parse(changed(whole_tree(config), changes))


def changed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with dotted keys replaced; choosing another part drops the options of the former."""
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    for key, value in sorted(changes.items(), key=lambda change: "." in change[0]):
        part, _, option = key.partition(".")
        if not option:
            tree[part] = {"name": value} if part in SECTIONS and isinstance(value, str) else value
        elif isinstance(tree.get(part), dict) and "." not in option:
            tree[part][option] = value
        else:
            raise SondeError(f"unknown key {key!r}: {nearest(key, options(tree))}")
    return tree


def complete_and_load_plugins(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the options that it leaves out, at their defaults; values are not validated."""
    found = defaults(RunConfig) | dict(tree)
    for part in SECTIONS:
        kind, given = _chosen(part, tree.get(part, {}))
        name = {"name": tree[part]} if isinstance(tree.get(part), str) else {}
        found[part] = name | defaults(kind) | given
    return found


def options(tree: Mapping[str, Any]) -> set[str]:
    """Every dotted key of a configuration with the parts of this tree; `model`, `rule` and `task` are their names."""
    known = {field.name for field in dataclasses.fields(RunConfig)}
    for part in SECTIONS:
        if part in tree:
            kind, _ = _chosen(part, tree[part])
            known |= {f"{part}.{field.name}" for field in dataclasses.fields(kind)}
    return known - {"probes"}


def keys(config: RunConfig) -> dict[str, Any]:
    """Every dotted key of the configuration with its value; `model`, `rule` and `task` are their names."""
    return flatten(whole_tree(config))
