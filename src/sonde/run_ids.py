"""What a run's id covers, so that it stays the same while Sonde grows.

The id ends in the hash of a tree: of every part the options that stand in this table, whatever their values, and any
younger option where it differs from its default.  An option that is added later stands in no line of the table, so it
leaves all ids as they are.  A part that comes to mean something else under the same options (another default, other
arithmetic) says `version: ClassVar[int] = 2`, and its runs get new ids.  `tests/golden/test_identity.py` holds both.

Version 0.1.0 hashed the whole tree: this table is what that tree was made of, so its runs are recognised.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

Options = tuple[str, ...]

CHOSEN = ("model", "rule", "task")
"""The parts that are chosen by name, and stand in the id with it."""

CREDIT: Options = ("credit_scale", "penalty")

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
    "rule": {
        "bp": CREDIT,
        "fa": CREDIT,
        "dfa": CREDIT,
        "state_bridge": ("input_norm", "side", *CREDIT),
        "credit_bridge": ("input_norm", "copies", "temperature", "noise", "average", "warmup", *CREDIT),
        "frozen": CREDIT,
        "usf": CREDIT,
        "frsf": CREDIT,
        "brsf": CREDIT,
        "kp": ("decay", *CREDIT),
        "mirror": ("every", "samples", "rate", *CREDIT),
        "drtp": ("per_channel", *CREDIT),
        "dkp": ("lr", "decay", "per_channel", *CREDIT),
        "fdfa": ("lr", *CREDIT),
        "forward_gradient": ("directions", *CREDIT),
        "predsim": ("beta", "similar", *CREDIT),
        "ddtp": ("step", "noise", *CREDIT),
    },
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
