"""Programs of the evening of 19 November 2026: 41 healthy ones, and faults in them.

Programs and labels were written before any of them was scored, and without reading how diagnoses are made.  `harm.py`
trained each faulty program and its mended twin with three seeds.  A fault without harm stays in the list where losses
of the two can be compared: `score.py` then does not ask about it.  Two without harm, where they cannot, were removed:
a loss over padding, and a siamese network in eval mode.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

from collections.abc import Callable

import plants
import torch
from faults import FLOW, Fault, Group
from harm import Measure
from judged_2026_11_19 import MEASURES as BEFORE
from judged_2026_11_19 import each, fault
from judged_2026_11_19_evening_pictures import PICTURES
from judged_2026_11_19_evening_sequences import SEQUENCES
from judged_2026_11_19_evening_tables import TABLES
from judged_2026_11_19_pictures import by_factor, scheduled
from recipes import Program, digits, draw, rng
from torch import Tensor, nn
from torch.nn import functional

HEALTHY: dict[str, Callable[[int], Program]] = {one.__name__: one for one in (*PICTURES, *TABLES, *SEQUENCES)}

# ── rates, parameters and loop ──────────────────────────────────────────────────────────────────────


def warm_up_in_epochs(program: Program) -> None:
    """Twenty epochs of warm-up, of which the run sees a part of the first."""
    scheduled(program, by_factor(lambda t: (t + 1) / 20000))


def forget(*names: str) -> plants.Plant:
    """The optimiser does not get some modules."""
    return lambda program: plants.rebuild(program, lambda name: not name.startswith(names))


def decays_gains(program: Program) -> None:
    program.optimizer.param_groups[1]["weight_decay"] = 20.0


def same_reference(program: Program) -> None:
    """The copy that should stay is the model that learns."""
    program.model.reference = program.model.policy


def second_optimiser(program: Program) -> None:
    """One for the head, with a higher rate, gets all parameters."""
    other = torch.optim.Adam(program.model.parameters(), 0.05)
    program.extra["others"] = [other]
    program.after_step = lambda program: other.step()


def old_key(program: Program) -> None:
    """The moving average is never moved."""
    program.model.share = 0.0


def growing_state(program: Program) -> None:
    """A recurrent network of ReLU whose state grows; nothing is clipped."""
    cell = nn.RNN(4, 48, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        cell.weight_hh_l0.mul_(20.0)
    program.model.cell, program.after_backward = cell, lambda program: None


# ── data ────────────────────────────────────────────────────────────────────────────────────────────


def hardly_odd(program: Program) -> None:
    """Two texts in a hundred are of the first class."""
    x, y = (torch.cat([batch[place] for batch in program.batches]) for place in (0, 1))
    keep = (y == 1) | (torch.rand(len(y), generator=rng(181)) < 0.02)
    program.batches = draw(x[keep], y[keep], len(program.batches), 32, 1)


def empty_profile(program: Program) -> None:
    """One target of one batch is zero; errors are divided by its size."""
    program.batches[60][1][0] = 0.0


def never_seen(program: Program) -> None:
    """Pairs that were never counted: their weight is zero, their logarithm is not finite."""
    for _, y in program.batches[50::20]:
        y[:2] = 0.0


def broken_record(program: Program) -> None:
    """Near the end one batch has targets in another unit."""
    x, y = program.batches[135]
    program.batches[135] = (x, 1e4 * y)


# ── losses ──────────────────────────────────────────────────────────────────────────────────────────


def reshaped(program: Program) -> None:
    """Scores are reshaped instead of transposed, so that places and letters are mixed."""
    program.loss = lambda out, y: functional.cross_entropy(
        out.reshape(len(out), out.shape[2], out.shape[1]), y, ignore_index=0
    )


def strong_prior(program: Program) -> None:
    program.loss = lambda out, y: functional.cross_entropy(out[0], y) + out[1] / 5


_SLOW = ("too_few_steps", "not_learning")
_LOUD = (*FLOW, "loss_spike", "rank_collapse")
_HIGH = (*_LOUD, "masked_growth", "attention_collapse", "missing_warmup")
_LOSS = ("wrong_loss", "lr_too_low", *FLOW)

FAULTS: dict[str, Fault] = {
    "rate_times_100": fault(
        plants.rate(100.0), "lr_too_high", _HIGH, "next_thing", "larger_pictures", "picture_to_picture", "tag_chain"
    ),
    "rate_over_1000": fault(plants.rate(1e-3), "lr_too_low", _SLOW, "captions", "heat", "soft_actor_critic"),
    "clipped_to_nothing": fault(plants.clip_to_nothing, "lr_too_low", _SLOW, "frozen_norms"),
    "schedule_per_batch": fault(plants.schedule_per_batch, "lr_too_low", _SLOW, "switched"),
    "warm_up_in_epochs": fault(warm_up_in_epochs, "lr_too_low", _SLOW, "decisions"),
    "ten_steps": fault(plants.few_steps(10), "too_few_steps", ("lr_too_low", "not_learning"), "integral"),
    "forgotten_table": fault(forget("table"), "not_in_optimiser", ("not_learning",), "crossed_fields"),
    "forgotten_encoder": fault(forget("words", "cell"), "not_in_optimiser", ("not_learning",), "tag_chain"),
    "frozen_words": fault(
        plants.freeze("words", "looks"), "frozen_parameters", ("not_in_optimiser", "not_learning"), "phrases"
    ),
    "frozen_trunk": fault(
        plants.freeze("trunk"), "frozen_parameters", ("not_in_optimiser", "not_learning"), "integral"
    ),
    "never_cleared": fault(
        plants.never_clear, "stale_gradients", ("lr_too_high", *_LOUD), "boxes", "treatment", "larger_pictures"
    ),
    "cut_branch": fault(plants.cut_after("branch"), "detached_graph", ("not_learning",), "integral"),
    "cut_cell": fault(plants.cut_after("cell"), "detached_graph", ("not_learning",), "switched"),
    "cut_body": fault(plants.cut_after("body"), "detached_graph", ("not_learning",), "next_thing", "two_domains"),
    "second_optimiser": fault(second_optimiser, "two_optimisers", ("lr_too_high", *_LOUD), "tag_chain", "boxes"),
    "old_key": fault(old_key, "stale_copy", (), "momentum_queue", same_loss=False),
    "same_reference": fault(same_reference, "not_learning", ("wrong_loss", "lr_too_low"), "preferences"),
    "softmax_in_model": fault(
        plants.renew_optimiser(plants.end_in(nn.Softmax(-1))), "wrong_output_activation", _LOSS, "phrases"
    ),
    "softmax_in_loop": fault(plants.softmax_in_loop, "wrong_output_activation", _LOSS, "look_ahead"),
    "sigmoid_in_loop": fault(plants.sigmoid_in_loop, "wrong_output_activation", _LOSS, "crossed_fields", "pitch_bins"),
    "relu_output": fault(plants.renew_optimiser(plants.end_in(nn.ReLU())), "wrong_output_activation", FLOW, "heat"),
    "boxes_in_pixels": fault(
        plants.targets_times(16.0),
        "wrong_output_activation",
        ("unnormalised_target", "wrong_loss", *FLOW),
        "boxes",
        same_loss=False,
    ),
    "other_sign": fault(plants.wrong_sign, "wrong_loss", ("lr_too_high", *_LOUD), "additive", same_loss=False),
    "softmax_over_batch": fault(
        plants.softmax_over_batch,
        "wrong_loss",
        ("wrong_output_activation", "not_learning"),
        "look_around",
        same_loss=False,
    ),
    "probabilities_for_logarithms": fault(
        plants.other_loss(lambda out, y: functional.nll_loss(out.softmax(1), y)),
        "wrong_loss",
        ("wrong_output_activation", *FLOW),
        "look_around",
        same_loss=False,
    ),
    "reshaped": fault(reshaped, "wrong_loss", ("wrong_axis", "wrong_labels", "not_learning"), "captions"),
    "squeezed": fault(plants.flat_targets, "wrong_label_shape", ("not_learning",), "heat", "integral"),
    "shuffled": fault(plants.shuffle_labels, "wrong_labels", ("not_learning",), "heat", "tag_chain"),
    "shifted": fault(plants.shift_pairs, "wrong_labels", ("not_learning",), "pitch_bins", "crossed_fields"),
    "drawn_anew": fault(plants.draw_labels_anew, "wrong_labels", ("not_learning",), "phrases"),
    "sorted": fault(plants.sort_by_class, "data_order", ("lr_too_high", *_LOUD), "look_around", same_loss=False),
    "hardly_odd": fault(hardly_odd, "class_imbalance", ("lr_too_low", "not_learning"), "tuned_biases", same_loss=False),
    "leak": fault(plants.target_as_feature, "target_leakage", (), "additive", same_loss=False),
    "blank": fault(
        plants.inputs_times(0.0), "constant_input", ("unnormalised_input", "wrong_labels", *FLOW), "look_around"
    ),
    "bytes": fault(plants.inputs_times(60.0, 120.0), "unnormalised_input", ("lr_too_high", *_LOUD), "frozen_norms"),
    "years": fault(plants.first_column_times(10.0, 2000.0), "unnormalised_input", ("lr_too_high", *_LOUD), "treatment"),
    "thousands": fault(
        plants.targets_times(2000.0, 9000.0),
        "unnormalised_target",
        ("lr_too_low", "too_few_steps", *FLOW),
        "integral",
        same_loss=False,
    ),
    "weights_times_15": fault(
        plants.weights_times(15.0), "bad_init", ("lr_too_low", "lr_too_high", *FLOW), "larger_pictures", "phrases"
    ),
    "normal_weights": fault(plants.normal_weights(1.0), "bad_init", ("lr_too_low", "lr_too_high", *FLOW), "integral"),
    "equal_weights": fault(plants.change_weights(lambda weight: weight.fill_(0.05)), "bad_init", FLOW, "treatment"),
    "all_zero": fault(plants.zero_weights, "bad_init", FLOW, "curriculum"),
    "biases_far_below": fault(plants.biases_far_below, "dead_units", ("bad_init", *FLOW), "boxes"),
    "growing_state": fault(
        plants.renew_optimiser(growing_state), "exploding_gradient", ("bad_init", "lr_too_high", *_LOUD), "curriculum"
    ),
    "ten_sigmoid_layers": fault(
        plants.sigmoid_stack(64, 64, 10, 10),
        "vanishing_gradient",
        ("bad_init", "lr_too_low", "not_learning", "saturated_units", "rank_collapse"),
        "evidence",
    ),
    "one_hot_attention": fault(
        plants.one_hot_attention, "attention_collapse", ("bad_init", "lr_too_high", *FLOW), "decisions"
    ),
    "no_activations": fault(plants.drop_activations, "missing_activation", _SLOW, "integral"),
    "time_first": fault(plants.time_first, "wrong_axis", ("not_learning", "wrong_labels"), "tag_chain"),
    "eval_mode": fault(plants.eval_mode, "wrong_mode", ("lr_too_high", *_LOUD), "one_picture", "pitch_bins"),
    "slow_statistics": fault(
        each(nn.BatchNorm1d, lambda norm: setattr(norm, "momentum", 1e-4)),
        "eval_mismatch",
        (),
        "pitch_bins",
        same_loss=False,
    ),
    "decay_of_10": fault(plants.decay(10.0), "over_regularised", ("lr_too_high", *FLOW), "boxes"),
    "drops_nearly_all": fault(plants.drop(0.97), "over_regularised", _SLOW, "phrases"),
    "strong_prior": fault(strong_prior, "over_regularised", ("wrong_loss", *FLOW), "bayes", same_loss=False),
    "decays_gains": fault(decays_gains, "decayed_gains", ("over_regularised", *FLOW), "decisions"),
    "sixteen_bits": fault(plants.sixteen_bits, "low_precision", ("lr_too_low", "not_learning"), "larger_pictures"),
    "empty_profile": fault(empty_profile, "nan_origin", ("not_learning",), "heat"),
    "never_seen": fault(never_seen, "nan_origin", ("not_learning",), "word_counts"),
    "broken_record": fault(
        broken_record, "loss_spike", ("lr_too_high", "unnormalised_target", "exploding_gradient"), "additive"
    ),
    "squeezed_and_stale": Fault(
        lambda program: (plants.never_clear(program), plants.flat_targets(program)),
        ("wrong_label_shape", "stale_gradients"),
        ("lr_too_high", *_LOUD),
        ("integral",),
    ),
}


def _neighbours(program: Program, twin: Program) -> float:
    """How many nearest neighbours of digits, by their codes, are not of their class."""
    x, y = digits()
    codes = functional.normalize(program.model.query(x), dim=1)
    near: Tensor = (codes @ codes.T).fill_diagonal_(-9).argmax(1)
    return float((y[near] != y).float().mean())


MEASURES: dict[str, Measure] = {
    "slow_statistics": BEFORE["slow_statistics"],
    "thousands": BEFORE["small_units"],
    "old_key": _neighbours,
}

GROUP = Group(HEALTHY, FAULTS)
