"""The id of a run: which options it covers; and configurations as flat keys.

A run's id ends in a hash of its configuration.  The hash covers the options in the tables below, whatever their
values, and a newer option only where it differs from its default.  So an option that is added later changes no id.
A part that computes something else under the same options declares `version: ClassVar[int] = 2` and has a line in
`VERSIONS`; its runs get new ids.  Runs of another version stay readable, and their label names the version.
`tests/golden/test_identity.py` tests both.  Version 0.1.0 hashed the whole tree, which these tables describe, so its
runs keep their ids.

A flat configuration has dotted keys; `model`, `rule` and `task` stand for their names.  These are the keys of `--only`,
`--set` and `--factor`, and of every message about them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

_Options = Collection[str]
Flat = dict[str, Any]

CHOSEN = ("model", "rule", "task")
"""The parts that are chosen by name; their names are part of the id."""

_EXACT = {"credit_scale": "none", "penalty": 0.0}
_CREDIT = {"credit_scale": "rms", "penalty": 0.0}

RULE_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "bp": _EXACT,
    "fa": _CREDIT,
    "dfa": _CREDIT,
    "state_bridge": {"input_norm": "layer", "side": "error"} | _CREDIT,
    "credit_bridge": {"input_norm": "layer", "copies": 8, "temperature": 0.1, "noise": 0.1}
    | {"average": 0.995, "warmup": 0.2}
    | _CREDIT,
    "frozen": _EXACT,
    "usf": _CREDIT,
    "frsf": _CREDIT,
    "brsf": _CREDIT,
    "kp": _CREDIT,  # version 2; version 1 had a `decay`
    "mirror": {"every": 10, "samples": 128, "rate": 0.1} | _CREDIT,
    "drtp": {"per_channel": False} | _CREDIT,
    "dkp": {"lr": 1e-2, "decay": 1e-3, "per_channel": False} | _CREDIT,
    "fdfa": {"lr": 1e-4} | _CREDIT,
    "forward_gradient": {"directions": 1} | _CREDIT,
    "predsim": {"beta": 0.99, "similar": 256} | _CREDIT,
    "ddtp": {"step": 0.1, "noise": 0.01} | _CREDIT,
}
"""Rule → the options of its first release, with their defaults."""

FIRST_OPTIONS: dict[str, Mapping[str, _Options]] = {
    "model": {
        "plain_mlp": ("d", "L", "weight_scale"),
        "res_mlp": ("d", "L", "weight_scale"),
        "residual_mlp": ("d", "L", "out_ln", "residual", "w2_std"),
        "vit_mini": ("d", "L", "heads", "patch", "mlp_ratio", "out_ln"),
        "student_net": ("d", "L", "alpha"),
        "conv_net": ("channels", "d"),
        "res_net": ("n", "d", "norm"),
    },
    "rule": RULE_DEFAULTS,
    "task": {
        "identity": ("d", "samples", "test_samples", "steps_per_epoch"),
        "linear_quadratic": ("d", "samples", "test_samples"),
        "teacher": ("inputs", "classes", "samples", "test_samples", "alpha", "L", "d"),
        "digits": (),
        "parity": ("bits", "relevant", "samples", "test_samples"),
        "rhm": ("v", "m", "s", "L", "classes", "samples", "test_samples"),
        "cifar10": ("augment", "subset", "test_subset"),
    },
}
"""Part and name → the options of its first release."""

IN_LABEL = {"fa": ("level",), "pc": ("depth_scale",)}
"""Rule → the options that its own label states."""

VERSIONS: dict[str, Mapping[str, int]] = {"rule": {"kp": 2}}
"""Part and name → the `version` of parts that changed what they compute; all others have version 1."""

OPTIMISER_OPTIONS: _Options = ("name", "source", "lr", "weight_decay", "schedule")
PROBE_OPTIONS: _Options = (
    *("names", "schedule", "k", "costly", "costly_schedule", "costly_k"),
    *("size", "directions", "epsilon", "etas"),
)
RUN_OPTIONS: _Options = ("batch_size", "epochs", "seed", "precision", "log", "scale")


def first_options(part: str, name: str, kind: object = None) -> _Options | None:
    """The options that the id always covers; None means all of them.

    They are in the record of 0.1.0, or in `first_options` of the part's class `kind`; a plugin usually has neither.
    """
    sections = {"optimiser": OPTIMISER_OPTIONS, "probes": PROBE_OPTIONS, "": RUN_OPTIONS}
    if part in sections:
        return sections[part]
    stated: _Options | None = getattr(kind, "first_options", None)
    return FIRST_OPTIONS[part].get(name, stated)


def lasting(options: Mapping[str, Any], defaults: Mapping[str, Any], first: _Options | None) -> dict[str, Any]:
    """The options that a run's id covers: the first ones, and newer ones that differ from their default."""
    if first is None:
        return dict(options)
    return {key: value for key, value in options.items() if key in first or value != defaults.get(key)}


_FORMER_LABELS = {
    "Residual MLP": "ReLU ResMLP",
    "ResMLP": "Pre-LN ResMLP",
    "MLP without residual": "Pre-LN MLP",
}
"""Labels of networks as earlier versions stored them → as they are now; two of them were hard to tell apart."""


def network_label(label: str) -> str:
    """The label of a stored network as it is now: a former name is replaced, what follows its comma stays."""
    name, comma, rest = label.partition(",")
    return _FORMER_LABELS.get(name, name) + comma + rest


def rule_label(label: str, rule: Mapping[str, Any]) -> str:
    """The label of a stored rule in tables and figures, with the options that differ from their defaults.

    Defaults of plugins and of newer rules are not known here; their stored label has the options already.
    """
    name = rule["name"]
    if "source" in rule:
        return label
    if name not in RULE_DEFAULTS:
        return _without(label, IN_LABEL.get(name, ()))
    if (version := rule.get("version", 1)) != VERSIONS["rule"].get(name, 1):
        return with_settings(label, {"version": version})
    known = RULE_DEFAULTS[name]
    in_label = ("name", "version", *IN_LABEL.get(name, ()))
    other = {key: v for key, v in rule.items() if key not in in_label and (key not in known or known[key] != v)}
    return with_settings(label, other)


def _without(label: str, options: Collection[str]) -> str:
    """The label without these of the settings in its brackets."""
    name, _, settings = label.removesuffix(")").partition(" (")
    kept = [one for one in settings.split(", ") if one.partition("=")[0] not in options]
    return f"{name} ({', '.join(kept)})" if any(kept) else name


def with_settings(label: str, settings: Mapping[str, Any]) -> str:
    """Append settings to a label, unless it has them: "State Bridge (hidden_layers=1, every=4)"."""
    text = ", ".join(f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items())
    return label if not text or label.endswith(f" ({text})") else f"{label} ({text})"


def run_id(tree: Mapping[str, Any], whole: str | None = None) -> str:
    """The id of a configuration: its names, its seed, and 10 digits of its digest (`whole`, where known)."""
    names = "-".join(tree[part]["name"] for part in CHOSEN)
    return f"{names}-s{tree['seed']}-{(whole or config_digest(tree))[:10]}"


def config_digest(tree: Mapping[str, Any]) -> str:
    """The SHA-256 of a configuration.  Two runs are the same run only where their digests are equal.

    An id has 40 bits of it: enough against chance, but not against a configuration that is made to collide.
    """
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def flatten(tree: Mapping[str, Any]) -> Flat:
    """Turn a tree into dotted keys; a section that is chosen by name has its name as value."""
    return dict(_dotted(tree))


def _dotted(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            yield key, value
            continue
        if key in CHOSEN:
            yield key, value["name"]
        yield from ((f"{key}.{name}", v) for name, v in _dotted(value) if not (key in CHOSEN and name == "name"))


def identity(configuration: Mapping[str, Any]) -> str:
    """A text that is equal for equal configurations."""
    return json.dumps(configuration, sort_keys=True)


def recipe_of(configuration: Mapping[str, Any]) -> str:
    """A text that is equal for configurations that differ only in the seed."""
    return identity(without(configuration, ("seed",)))


def belongs(key: str, section: str) -> bool:
    """Whether a dotted key is the section or inside it."""
    return key == section or key.startswith(f"{section}.")


def without(configuration: Mapping[str, Any], sections: Collection[str]) -> Flat:
    """The configuration without these keys and sections."""
    return {key: v for key, v in configuration.items() if not any(belongs(key, section) for section in sections)}


def differing(configurations: Iterable[Flat]) -> dict[str, dict[str, int]]:
    """The keys whose values are not all equal: key → value → number of configurations with it."""
    flats = list(configurations)
    counts = {
        key: Counter(shown(flat[key]) if key in flat else "absent" for flat in flats)
        for key in sorted({key for flat in flats for key in flat})
    }
    return {key: dict(of_key) for key, of_key in counts.items() if len(of_key) > 1}


def distinct_names(named: Iterable[tuple[str, Flat]]) -> list[str]:
    """Make equal names distinct: append the keys in which their configurations differ, lists only where needed."""
    named = list(named)
    namesakes: dict[str, list[Flat]] = {}
    for name, flat in named:
        namesakes.setdefault(name, []).append(flat)
    different = {name: differing(flats) for name, flats in namesakes.items()}

    def title(name: str, flat: Flat, lists: bool) -> str:
        fields = [key for key in different[name] if key in flat and (lists or not isinstance(flat[key], list | tuple))]
        return ", ".join([name, *(f"{key} = {shown(flat[key])}" for key in fields)])

    brief = [title(name, flat, lists=False) for name, flat in named]
    times = Counter(brief)
    return [
        title(name, flat, lists=True) if times[short] > 1 else short
        for short, (name, flat) in zip(brief, named, strict=True)
    ]


def differences(left: Flat, right: Flat) -> list[str]:
    """The keys besides the seed in which two configurations differ, with both values, as text."""
    return [
        f"{key} = {left.get(key)!r} instead of {right.get(key)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key) and key != "seed"
    ]


def shown(value: Any) -> str:
    """A value as it is written after `--only`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
