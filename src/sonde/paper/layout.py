"""Names and keys of the paper layout.

Residual study: `results.json` (raw) and `results_fair.json` (scaled).  Beside each, `layer_states….json` holds what
the layout has no place for and figure `5_layer_transformation` needs: one input vector's state at every layer.  The
layout records no seed there: further seeds carry theirs in the file name.
"""

from dataclasses import dataclass

RESULTS = {"raw": "results", "scaled": "results_fair"}
STATES = {"raw": "layer_states", "scaled": "layer_states_fair"}
MODELS = {"plain_mlp": "Plain MLP", "res_mlp": "Residual MLP"}
LAYERED = {
    "gradient_norms": "preact_grad_norm",
    "activation_means": "activation_mean",
    "activation_stds": "activation_std",
}


@dataclass(frozen=True, kw_only=True)
class SnapshotFile:
    """A file of epoch-by-epoch logs: which runs it holds, and what its keys are called."""

    path: str  # with {seed}, and {alpha} and {L} where the network has them
    model: str
    label: str
    out_ln: bool | None
    logs: dict[str, str]  # rule → key of its log
    norms: str = "hidden_norms"
    gradients: str = "bp_grad_norms_per_sample_med"


_BOTH = {"bp": "bp_log", "dfa": "dfa_log"}
_FA = {"fa": "fa_log"}
_CLS = {"norms": "hidden_norms_cls", "gradients": "bp_grad_per_sample_l2_med"}

SNAPSHOTS = (
    SnapshotFile(
        path="results/snapshot_evolution_v2/snapshot_evolution_s{seed}.json",
        model="residual_mlp",
        label="ResMLP",
        out_ln=True,
        logs=_BOTH,
    ),
    SnapshotFile(
        path="results/snapshot_no_outln_v1/snapshot_noLN_s{seed}.json",
        model="residual_mlp",
        label="ResMLP, no terminal LN",
        out_ln=False,
        logs=_BOTH,
    ),
    SnapshotFile(
        path="results/snapshot_no_outln_v1/snapshot_fa_canonical_noln_s{seed}.json",
        model="residual_mlp",
        label="ResMLP, no terminal LN",
        out_ln=False,
        logs=_FA,
    ),
    SnapshotFile(
        path="results/snapshot_vit_v1/snapshot_vit_s{seed}.json",
        model="vit_mini",
        label="ViT-Mini",
        out_ln=True,
        logs=_BOTH,
        **_CLS,
    ),
    SnapshotFile(
        path="results/snapshot_vit_v1/snapshot_fa_canonical_s{seed}.json",
        model="vit_mini",
        label="ViT-Mini",
        out_ln=True,
        logs=_FA,
        **_CLS,
    ),
    SnapshotFile(
        path="results/snapshot_synth_v1/snapshot_synth_a{alpha}_L{L}_s{seed}.json",
        model="student_net",
        label="StudentNet",
        out_ln=None,
        logs=_BOTH,
    ),
    SnapshotFile(
        path="results/snapshot_synth_v1/snapshot_fa_canonical_s{seed}.json",
        model="student_net",
        label="StudentNet",
        out_ln=None,
        logs=_FA,
    ),
)

CIFAR10_FIRST_SEED = 42
CIFAR10_RULES = {"bp": "BP", "dfa": "DFA", "state_bridge": "State Bridge", "credit_bridge": "Credit Bridge"}


def cifar10_path(seed: int) -> str:
    folder = "cifar10" if seed == CIFAR10_FIRST_SEED else f"cifar10_seed{seed}"
    return f"results/{folder}/results_cifar10.json"
