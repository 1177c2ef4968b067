"""Metrics of watched runs and of trained networks, where no probe of their name says what they are."""

from sonde.explanations import good_and_bad
from sonde.explanations.explanation import Explanation

_WATCHED = {
    "out_rms": ("Root mean square of a module's output, over everything.", "√(Σx²/n)"),
    "out_mean": ("Mean of a module's output, over everything.", "Σx/n"),
    "out_max": ("Largest entry of a module's output.", "max x"),
    "grad_rms": (
        "Root mean square of ∂loss/∂output at a module's output.",
        "The loss as it was reduced, freed of a GradScaler's scale; heard by a hook on the tensor.",
    ),
    "dead_share": (
        "Share of an activation's units that are exactly 0 for the whole batch.",
        "Units are the last axis, channels of maps.",
    ),
    "saturated_share": (
        "Share of tanh, sigmoid and softmax outputs within 0.01 of a bound.",
        "Entries at a bound ÷ entries.",
    ),
    "stream_step": ("How far a module moves its input.", "‖out − in‖/‖in‖, median over samples."),
    "stream_cosine": ("Whether a module turns its input.", "cos(in, out), median over samples."),
    "norm_in_rms": ("Root mean square of what enters a normalisation layer.", "√(Σx²/n)"),
    "masked_growth": (
        "How much the input of a normalisation layer has grown.",
        "norm_in_rms ÷ its value at step 0.",
    ),
    "weight_norm": ("Norm of a parameter before the step.", "‖W‖"),
    "weight_grad_norm": ("Norm of a parameter's gradient, as the optimiser saw it.", "‖∂loss/∂W‖"),
    "update_ratio": (
        "How far one step of the optimiser moved a parameter.",
        "‖ΔW‖/‖W‖, measured around the step.",
    ),
    "grad_left": (
        "How much of an old gradient is there when a new one arrives.",
        (
            "‖old‖/‖new‖, the smallest of a step's backward passes, of two small parameters an optimiser; "
            "0 where gradients are cleared."
        ),
    ),
    "eval_share": (
        "Share of dropout and batch-statistics modules that are in eval mode, in parts that learn.",
        "Counted at the beginning of a watched step.",
    ),
    "attention_entropy": (
        "Entropy of attention weights.",
        "Mean over heads and queries of the first 8 samples, in nats.",
    ),
    "attention_max_logit": ("Largest attention logit.", "Over the first 8 samples."),
    "effective_rank": (
        "In how many directions the outputs of different samples point.",
        "exp(entropy of the normalised singular values) over 64 samples or tokens; Roy & Vetterli (2007).",
    ),
    "sample_cosine": (
        "How alike the outputs of different samples are.",
        "Mean cosine over pairs of 64 samples or tokens.",
    ),
    "grad_noise": (
        "How much the gradients of the two halves of a batch disagree.",
        "1 − cos of the two, at a module's output.",
    ),
    "nonfinite": (
        "The first thing that is not finite.",
        "The first module in order of execution whose output (1), else gradient (2), else the loss (3) is not.",
    ),
}
_TRAINED = {
    "test_acc": (
        "Share of test samples that are classified correctly.",
        "Over the test set, after every epoch or every `probes.test_every`.",
    ),
    "train_acc": ("Share of training samples that are classified correctly.", "Over the epoch's batches."),
    "test_loss": ("Mean loss over the test set.", "After every epoch or every `probes.test_every`."),
    "train_loss": ("Mean loss over the epoch's batches.", "As training computes it."),
    "batch_loss": ("Loss of one batch.", "Every step."),
    "grad_per_error": (
        "The gradient at the last hidden state per output error.",
        "Median over samples of ‖g_L‖/‖e‖. Below a LayerNorm it falls as 1/‖h_L‖.",
    ),
    "grad_resolution": (
        "Whether the precision of training resolves the gradient.",
        (
            "Cosine of g_l, computed as training computes it (float32, or products in bfloat16), with g_l in float64, "
            "over the whole probe batch."
        ),
    ),
    "state_pred_error": (
        "How well State Bridge predicts the last hidden state.",
        "‖G − h_L‖²/‖h_L‖², over samples and layers.",
    ),
}

METRICS = tuple(
    Explanation(
        name=name, kind="metric", short=short, measured=measured, **good_and_bad.METRICS[name]._asdict()
    )
    for name, (short, measured) in (_WATCHED | _TRAINED).items()
)
