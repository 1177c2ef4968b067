"""What a run's id covers, so that ids stay the same when options are added to Sonde.

The id ends in the hash of a tree.  The tree has, for every part, the options that the part was first released with,
and every later option whose value differs from its default.  So an added option changes no existing id.  A part that
changes its meaning under the same options (another default, other arithmetic) sets `version: ClassVar[int] = 2` and has
a line in `VERSIONS`; its runs get new ids.  Runs of another version can be read, and their label tells the version.
`tests/golden/test_identity.py` tests both.

Version 0.1.0 hashed all options.  `FIRST` records them, so that its runs are recognised; readers without torch need
this record.  A part that is not in it states `first_options` in its class; without that, the id covers all its options.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

_Options = Collection[str]

CHOSEN = ("model", "rule", "task")
"""The parts that are chosen by name; the id contains these names."""

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
    "kp": _CREDIT,  # of version 2; version 1 had a `decay`
    "mirror": {"every": 10, "samples": 128, "rate": 0.1} | _CREDIT,
    "drtp": {"per_channel": False} | _CREDIT,
    "dkp": {"lr": 1e-2, "decay": 1e-3, "per_channel": False} | _CREDIT,
    "fdfa": {"lr": 1e-4} | _CREDIT,
    "forward_gradient": {"directions": 1} | _CREDIT,
    "predsim": {"beta": 0.99, "similar": 256} | _CREDIT,
    "ddtp": {"step": 0.1, "noise": 0.01} | _CREDIT,
}
"""By rule, the options it was first released with, and their defaults."""

FIRST: dict[str, Mapping[str, _Options]] = {
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
        "teacher": ("inputs", "classes", "samples", "test_samples", "alpha", "L", "d"),
        "digits": (),
        "parity": ("bits", "relevant", "samples", "test_samples"),
        "rhm": ("v", "m", "s", "L", "classes", "samples", "test_samples"),
        "cifar10": ("augment", "subset", "test_subset"),
    },
}
"""By part and name, the options it was first released with."""

IN_LABEL = {"fa": ("level",)}
"""By rule, the options that its label contains."""

VERSIONS: dict[str, Mapping[str, int]] = {"rule": {"kp": 2}}
"""By part and name, the `version` of parts whose computation has changed; all others have version 1."""

OPTIMISER: _Options = ("name", "source", "lr", "weight_decay", "schedule")
PROBES: _Options = (
    *("names", "schedule", "k", "costly", "costly_schedule", "costly_k"),
    *("size", "directions", "epsilon", "etas"),
)
RUN: _Options = ("batch_size", "epochs", "seed", "precision", "log", "scale")


def first_options(part: str, name: str, kind: object = None) -> _Options | None:
    """The options that the id always covers; None means all of them.

    They are in the record of 0.1.0, or in `first_options` of the part's class `kind`; a plugin usually has neither.
    """
    sections = {"optimiser": OPTIMISER, "probes": PROBES, "": RUN}
    if part in sections:
        return sections[part]
    stated: _Options | None = getattr(kind, "first_options", None)
    return FIRST[part].get(name, stated)


def lasting(options: Mapping[str, Any], defaults: Mapping[str, Any], first: _Options | None) -> dict[str, Any]:
    """The options that a run's id covers."""
    if first is None:
        return dict(options)
    return {key: value for key, value in options.items() if key in first or value != defaults.get(key)}


def rule_label(label: str, rule: Mapping[str, Any]) -> str:
    """What tables and figures call a stored rule: its label and the options that differ from their defaults.

    Defaults are known for the rules of the record.  The label of any other rule was completed when it was trained
    (`config.label_of`).
    """
    name = rule["name"]
    if "source" in rule or name not in RULE_DEFAULTS:
        return label
    if (version := rule.get("version", 1)) != VERSIONS["rule"].get(name, 1):
        return with_settings(label, {"version": version})
    known = RULE_DEFAULTS[name]
    told = ("name", "version", *IN_LABEL.get(name, ()))
    other = {key: v for key, v in rule.items() if key not in told and (key not in known or known[key] != v)}
    return with_settings(label, other)


def with_settings(label: str, settings: Mapping[str, Any]) -> str:
    """A label with settings in brackets, once: "State Bridge (hidden_layers=1, every=4)"."""
    told = ", ".join(f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in settings.items())
    return label if not told or label.endswith(f" ({told})") else f"{label} ({told})"


def run_id(tree: Mapping[str, Any], whole: str | None = None) -> str:
    """Readable, and the same for every run of the configuration; `whole` is its digest where that is known."""
    names = "-".join(tree[part]["name"] for part in CHOSEN)
    return f"{names}-s{tree['seed']}-{(whole or digest(tree))[:10]}"


def digest(tree: Mapping[str, Any]) -> str:
    """The whole SHA-256 of a configuration.  Two runs are the same run if it is equal.

    An id has 40 bits of it: enough against collisions by chance, not against a deliberate search for one.
    """
    return hashlib.sha256(canonical(tree).encode()).hexdigest()


def canonical(tree: Mapping[str, Any]) -> str:
    """The tree as text, in the form that is hashed."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))
