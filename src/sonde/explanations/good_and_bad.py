"""What good and bad look like, of every probe and every metric that has such a thing: name → (good, bad)."""

from typing import NamedTuple


class Looks(NamedTuple):
    good: str
    bad: str


PROBES = {
    "loss": Looks(
        "it falls from epoch to epoch and ends well below that of a constant answer.",
        "it stays where a constant answer stands, rises, or is not finite.",
    ),
    "hidden_norm": Looks(
        "the same order of magnitude at every layer, or growth by a few per cent a block.",
        "a factor of ten and more a layer: the stream explodes, or all inputs come to look alike.",
    ),
    "growth": Looks(
        "values near 1 at every block.",
        "tens or thousands at one block; a LayerNorm at the end hides it from the loss.",
    ),
    "branch_ratio": Looks(
        "every block adds a few per cent to its stream, up to about as much as there is.",
        "0: the branch is idle; far above 1: what came before is drowned.",
    ),
    "branch_cosine": Looks(
        "values near 0: blocks add what the stream does not hold yet.",
        "near 1 or −1 at all blocks: they only scale the stream.",
    ),
    "grad_norm": Looks(
        "the same order of magnitude at every layer.",
        "a factor of ten and more a layer in either direction; small everywhere is no fault if the error is small.",
    ),
    "credit_norm": Looks(
        "finite and above zero at every layer that is to learn; its size alone says little.",
        "zero, or many orders of magnitude apart between layers.",
    ),
    "credit_cosine": Looks(
        "well above `/null` at every layer, as far as `/bp`, which is 1.",
        "within the spread of `/null`, or above it at layer 0 alone.",
    ),
    "rho": Looks(
        "near `/bp`, the ceiling, at every layer, and the ceiling near 1.",
        "within the spread of `/null` at all layers but the first; with a ceiling far below 1 nothing can be read.",
    ),
    "nudge": Looks(
        "below zero, near what `/bp` reaches: the loss falls.",
        "near `/null`, or above zero: the loss does not care, or rises.",
    ),
    "cross_batch_cosine": Looks(
        "well above 0: batches agree on what to do.",
        "near 0: each batch pulls another way, and a step follows its samples.",
    ),
    "drift": Looks(
        "all tensors move, by a tenth to a few times their size.",
        "0 in blocks that were to learn, or thousands while others stay.",
    ),
    "activation_mean": Looks(
        "near 0, or small beside activation_std.",
        "many times activation_std: units are always on or always off.",
    ),
    "activation_std": Looks(
        "about 1, and the same at every layer.",
        "a factor of ten and more between neighbouring layers.",
    ),
    "preact_grad_norm": Looks(
        "the same order of magnitude at every layer.",
        "a factor of ten and more a layer in either direction.",
    ),
    "trace": Looks(
        "units of both signs whose size stays alike from layer to layer.",
        "units that are all zero, or that grow without end.",
    ),
    "weight_alignment": Looks(
        "it rises over epochs: the weights come to resemble the way back.",
        "it stays near 0: credit goes back through matrices unrelated to the weights.",
    ),
}

METRICS = {
    "out_rms": Looks(
        "the same order of magnitude at every module and step.",
        "a thousandfold growth or loss over depth or steps.",
    ),
    "out_mean": Looks(
        "small beside out_rms.", "as large as out_rms: the output hardly depends on the input."
    ),
    "out_max": Looks("a few times out_rms.", "thousands of times out_rms: one entry decides."),
    "grad_rms": Looks(
        "the same order of magnitude at every module.",
        "a thousandth at the first modules of what it is at the last, or exactly 0.",
    ),
    "dead_share": Looks("below a half, and steady.", "near 1, or rising in the first steps."),
    "saturated_share": Looks(
        "a few per cent.", "half of a hidden layer's entries and more in the first steps."
    ),
    "stream_step": Looks(
        "a few per cent to about 1.", "exactly 0: the module returns its input; above 100: it drowns it."
    ),
    "stream_cosine": Looks("above 0, below 1.", "exactly 1 at every step: nothing is added."),
    "norm_in_rms": Looks(
        "a few times larger at the last block than at the first.", "a hundredfold over depth."
    ),
    "masked_growth": Looks("within a factor of ten of 1.", "a hundred and more."),
    "weight_norm": Looks("it changes slowly.", "it falls to a third and less, or grows without end."),
    "weight_grad_norm": Looks("above zero at every parameter.", "0 or not finite at some and not at others."),
    "update_ratio": Looks(
        "about 1e-3, up to a few per cent in the first steps.",
        "above 0.3: steps overshoot; below 1e-5: nothing happens.",
    ),
    "grad_left": Looks("0 at every step.", "above 0: gradients are not cleared."),
    "eval_share": Looks("0 while training.", "1: model.train() was forgotten."),
    "attention_entropy": Looks(
        "well above 0 at the start.", "near 0 in the first steps: attention is one-hot."
    ),
    "attention_max_logit": Looks("below 10 or so.", "above 30 in the first steps."),
    "effective_rank": Looks("many directions at every layer.", "near 1: all samples look alike."),
    "sample_cosine": Looks("well below 1.", "near 1: all samples point one way."),
    "grad_noise": Looks("well below 1 early in training.", "near 1 while the loss no longer falls."),
    "nonfinite": Looks("no row at all.", "any row."),
    "test_acc": Looks(
        "it rises, and ends far above the share of the largest class.", "it stays at that share."
    ),
    "train_acc": Looks(
        "it rises, a little above test_acc.", "it stays at chance, or is 1 while test_acc is not."
    ),
    "test_loss": Looks("it falls with train_loss.", "it rises while train_loss falls, or is not finite."),
    "train_loss": Looks("it falls from epoch to epoch.", "it stays, rises, or is not finite."),
    "batch_loss": Looks("it falls with some noise.", "it jumps by factors of ten, or is not finite."),
    "grad_per_error": Looks(
        "it stays within a factor of ten of its value at init, or falls as ‖h_L‖ grows below a LayerNorm.",
        "it falls while ‖h_L‖ does not grow.",
    ),
    "grad_resolution": Looks(
        "1 to ten digits in float32, to four or five in bfloat16, at every layer.",
        "below 0.9: rounding is half as large as the gradient, or larger.",
    ),
    "state_pred_error": Looks("it falls towards 0.", "about 1: no better than predicting nothing."),
}
