"""What a run's id covers, so that it stays the same while Sonde grows.

The id ends in the hash of a tree: of every part the options that stand in this table, whatever their values, and any
younger option where it differs from its default.  An option that is added later stands in no line of the table, so it
leaves all ids as they are.  A part that comes to mean something else under the same options (another default, other
arithmetic) says `version: ClassVar[int] = 2` and has a line in `VERSIONS`, and its runs get new ids; runs of another
version are read, and their label says which.  `tests/golden/test_identity.py` holds both.

Version 0.1.0 hashed the whole tree: this table is what that tree was made of, so its runs are recognised.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

Options = Collection[str]

CHOSEN = ("model", "rule", "task")
"""The parts that are chosen by name, and stand in the id with it."""

EXACT = {"credit_scale": "none", "penalty": 0.0}
CREDIT = {"credit_scale": "rms", "penalty": 0.0}

RULE_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "bp": EXACT,
    "fa": CREDIT,
    "dfa": CREDIT,
    "state_bridge": {"input_norm": "layer", "side": "error"} | CREDIT,
    "credit_bridge": {"input_norm": "layer", "copies": 8, "temperature": 0.1, "noise": 0.1}
    | {"average": 0.995, "warmup": 0.2}
    | CREDIT,
    "frozen": EXACT,
    "usf": CREDIT,
    "frsf": CREDIT,
    "brsf": CREDIT,
    "kp": CREDIT,  # of version 2; version 1 had a `decay`
    "mirror": {"every": 10, "samples": 128, "rate": 0.1} | CREDIT,
    "drtp": {"per_channel": False} | CREDIT,
    "dkp": {"lr": 1e-2, "decay": 1e-3, "per_channel": False} | CREDIT,
    "fdfa": {"lr": 1e-4} | CREDIT,
    "forward_gradient": {"directions": 1} | CREDIT,
    "predsim": {"beta": 0.99, "similar": 256} | CREDIT,
    "ddtp": {"step": 0.1, "noise": 0.01} | CREDIT,
}
"""By rule, the options it had when it was first released, and their defaults."""

FIRST: dict[str, Mapping[str, Options]] = {
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
"""By part and name, the options it had when it was first released."""

IN_LABEL = {"fa": ("level",)}
"""By rule, the options that its own label tells."""

VERSIONS: dict[str, Mapping[str, int]] = {"rule": {"kp": 2}}
"""By part and name, the `version` of parts that compute something else than they did at first; all others are at 1."""

OPTIMISER: Options = ("name", "source", "lr", "weight_decay", "schedule")
PROBES: Options = (
    *("names", "schedule", "k", "costly", "costly_schedule", "costly_k"),
    *("size", "directions", "epsilon", "etas"),
)
RUN: Options = ("batch_size", "epochs", "seed", "precision", "log", "scale")


def first_options(part: str, name: str) -> Options | None:
    """The options that are always covered; None where all of them are, because the part is a guest."""
    sections = {"optimiser": OPTIMISER, "probes": PROBES, "": RUN}
    return sections[part] if part in sections else FIRST[part].get(name)


def lasting(options: Mapping[str, Any], defaults: Mapping[str, Any], first: Options | None) -> dict[str, Any]:
    """The options that a run's id covers."""
    if first is None:
        return dict(options)
    return {key: value for key, value in options.items() if key in first or value != defaults.get(key)}


def rule_label(label: str, rule: Mapping[str, Any]) -> str:
    """What tables and figures call a stored rule: its label and what differs from its defaults.

    A younger option is stored only where it differs.  A guest's defaults are not known here: its label has them since
    it was trained.
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
    """The whole SHA-256 of a configuration, which decides what a run is.

    An id has 40 bits of it: enough against chance, not against somebody who looks for another configuration that gets
    a given id.
    """
    return hashlib.sha256(canonical(tree).encode()).hexdigest()


def canonical(tree: Mapping[str, Any]) -> str:
    """The tree as the one text that is hashed."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))
