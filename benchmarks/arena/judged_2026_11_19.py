"""Programs of 19 November 2026: 41 healthy ones, and faults in them.  Labels were written before any was scored.

`harm.py` trained each faulty program and its mended twin with three seeds, without a diagnosis.  A fault is listed if
it harms: in all three, but for `loud_blocks`, which does in two.  `MEASURES` says how this is measured where the losses
of the two cannot be compared.  Five planted faults without harm were removed: padding in the loss, a head that is a
copy, a softmax over the wrong axis of lists, and equal weights and no activations in places where Adam mends them.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

import types
from collections.abc import Callable
from typing import Any

import plants
import torch
from faults import FLOW, Fault, Group
from harm import Measure, by_twin
from judged_2026_11_19_graphs import GRAPHS_AND_MORE
from judged_2026_11_19_pictures import PICTURES, Residual, by_factor, scheduled
from judged_2026_11_19_sequences import SEQUENCES
from judged_2026_11_19_tables import TABLES
from recipes import Program, Reader, digits, draw, mlp, rng
from torch import Tensor, nn
from torch.nn import functional

HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one for one in (*PICTURES, *TABLES, *SEQUENCES, *GRAPHS_AND_MORE)
}

# ── rates and steps ─────────────────────────────────────────────────────────────────────────────────


def falls_to_zero(program: Program) -> None:
    """A linear schedule over ten batches instead of ten epochs."""
    scheduled(program, by_factor(lambda t: max(0.0, 1 - t / 10)))


def endless_warm_up(program: Program) -> None:
    scheduled(program, by_factor(lambda t: t / 1e6))


def clips_by_value(program: Program) -> None:
    program.after_backward = lambda program: nn.utils.clip_grad_value_(program.model.parameters(), 1e-7)


def without_warm_up(program: Program) -> None:
    program.after_step = lambda program: None
    for group in program.optimizer.param_groups:
        group["lr"] = group["initial_lr"]


def second_optimiser(program: Program) -> None:
    """One for all parameters, made for a part of them, beside the first."""
    other = torch.optim.SGD(program.model.parameters(), 0.05, momentum=0.9)
    program.extra["others"] = [other]
    program.after_step = lambda program: other.step()


def sums_pixels(program: Program) -> None:
    """The sum over all pixels instead of their mean, at the same rate."""
    program.loss = nn.CrossEntropyLoss(program.loss.weight, ignore_index=255, reduction="sum")


# ── parameters and graph ────────────────────────────────────────────────────────────────────────────


def new_head(program: Program) -> None:
    """The head is replaced after the optimiser was made, and what joins later stays frozen."""
    program.model[1] = nn.Linear(64, 10)


def never_thawed(program: Program) -> None:
    program.after_step = lambda program: None


def plain_list(program: Program) -> None:
    """Layers in a list of Python are no parameters of the model."""
    layers = [*program.model.edges]
    del program.model.edges
    program.model.edges = layers


def clears_each_epoch(program: Program) -> None:
    """Gradients are cleared once in 30 steps."""
    program.clears, done = False, []

    def after(program: Program) -> None:
        done.append(1)
        if len(done) % 30 == 0:
            program.optimizer.zero_grad()

    program.after_step = after


def leaves_the_graph(program: Program) -> None:
    """The output goes through NumPy and becomes a leaf."""
    program.before_loss = lambda out: torch.tensor(out.detach().numpy(), requires_grad=True)


def never_averaged(program: Program) -> None:
    program.after_step = lambda program: None


# ── weights and layers ──────────────────────────────────────────────────────────────────────────────


def deep_and_small(program: Program) -> None:
    """Sixteen tanh layers, drawn with a spread of 0.01."""
    program.model = mlp(12, *[64] * 16, 1, act=nn.Tanh)
    plants.normal_weights(0.01)(program)


def of_cell(cell: nn.RNNBase, spread: float) -> plants.Plant:
    """The model reads with another cell, whose weights are drawn with some spread."""

    def plant(program: Program) -> None:
        program.model = Reader(cell, 1)
        plants.normal_weights(spread)(program)
        program.after_backward = lambda program: None

    def made(program: Program) -> None:
        cell.reset_parameters()
        plants.renew_optimiser(plant)(program)

    return made


def each(kind: type[nn.Module], change: Callable[[Any], Any]) -> plants.Plant:
    """Change every module of a kind."""

    def plant(program: Program) -> None:
        with torch.no_grad():
            for module in program.model.modules():
                if isinstance(module, kind):
                    change(module)

    return plant


def multiplies_logits(attention: Any) -> None:
    """The logits are multiplied by what they should be divided by, and weights start larger."""
    attention.scale = 1 / attention.scale
    attention.qkv.weight.mul_(6.0)


def loud(residual: Residual) -> None:
    residual.body.register_forward_hook(lambda module, given, out: 30 * out + 30 * given[0])


def decays_gains(program: Program) -> None:
    program.optimizer.param_groups[1]["weight_decay"] = 20.0


def penalty_of_weights(program: Program) -> None:
    """All absolute weights are added to the loss."""
    before = program.loss
    program.loss = lambda out, y: before(out, y) + sum(p.abs().sum() for p in program.model.parameters())


# ── data ────────────────────────────────────────────────────────────────────────────────────────────


def one_sample_again(program: Program) -> None:
    """The loader returns its first sample with all targets."""
    first = program.batches[0][0][:1]
    program.batches = [(first.expand_as(x).clone(), y) for x, y in program.batches]


def flat_series(program: Program) -> None:
    """In two batches one series never changes; its spread is a divisor."""
    for place in (40, 90):
        program.batches[place][0][0] = 1.0


def broken_record(program: Program) -> None:
    """Near the end one batch has targets in another unit."""
    x, y = program.batches[185]
    program.batches[185] = (x, 1e4 * y)


def without_one_class(program: Program) -> None:
    x, y = digits()
    program.batches = draw(x[y != 3], y[y != 3], len(program.batches), 128, 1)


def hardly_positive(program: Program) -> None:
    """Two samples in a hundred are positive."""
    x, y = (torch.cat([batch[place] for batch in program.batches]) for place in (0, 1))
    keep = (y[:, 0] < 0.5) | (torch.rand(len(y), generator=rng(141)) < 0.02)
    program.batches = draw(x[keep], y[keep], len(program.batches), 64, 1)


# ── outputs and losses ──────────────────────────────────────────────────────────────────────────────


def root_of_zero(program: Program) -> None:
    """The root of a distance that is zero for two equal inputs."""
    program.model.forward = types.MethodType(
        lambda self, a, b: (self.body(a) - self.body(b)).square().sum(1).sqrt(), program.model
    )
    (a, b), y = program.batches[20]
    program.batches[20] = ((a, torch.cat([a[:1], b[1:]])), torch.cat([torch.ones(1), y[1:]]))


def probabilities_for_logarithms(program: Program) -> None:
    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores = functional.kl_div((out[0] / 3).softmax(1), (y[:, :10] / 3).softmax(1), reduction="batchmean")
        return 9 * scores + functional.mse_loss(out[1], y[:, 10:])

    program.loss = loss


def heavy_prior(program: Program) -> None:
    program.loss = lambda out, y: (functional.binary_cross_entropy_with_logits(out[0], y) + 20 * out[1]).mean()


def against_the_critic(program: Program) -> None:
    """The actor goes down the value instead of up."""
    program.descend = lambda loss: Program.descend(program, -loss)


def two(*faults: plants.Plant) -> plants.Plant:
    def plant(program: Program) -> None:
        for one in faults:
            one(program)

    return plant


_SLOW = ("too_few_steps", "not_learning")
_LOUD = (*FLOW, "loss_spike", "rank_collapse")
_HIGH = (*_LOUD, "masked_growth", "attention_collapse", "missing_warmup")
_LOSS = ("wrong_loss", "lr_too_low", *FLOW)


def fault(plant: plants.Plant, name: str, also: tuple[str, ...], *recipes: str, same_loss: bool = True) -> Fault:
    return Fault(plant, (name,), also, recipes, same_loss)


FAULTS: dict[str, Fault] = {
    "rate_times_60": fault(plants.rate(60.0), "lr_too_high", _HIGH, "hybrid_attention", "sentence_pairs"),
    "rate_times_400": fault(plants.rate(400.0), "lr_too_high", _HIGH, "pixel_by_pixel"),
    "rate_over_3000": fault(plants.rate(1 / 3000), "lr_too_low", _SLOW, "count_triangles", "flow_matching"),
    "falls_to_zero": fault(falls_to_zero, "lr_too_low", _SLOW, "charges"),
    "endless_warm_up": fault(endless_warm_up, "lr_too_low", _SLOW, "imitate"),
    "clips_by_value": fault(clips_by_value, "lr_too_low", _SLOW, "arc_margin"),
    "eight_steps": fault(plants.few_steps(8), "too_few_steps", ("lr_too_low", "not_learning"), "grid_detector"),
    "no_warm_up": fault(
        without_warm_up, "missing_warmup", ("lr_too_high", "attention_collapse", *_LOUD), "sort_letters"
    ),
    "second_optimiser": fault(second_optimiser, "two_optimisers", ("lr_too_high", *_LOUD), "imitate"),
    "sums_pixels": fault(sums_pixels, "lr_too_high", ("wrong_loss", *_HIGH), "segment", same_loss=False),
    "new_head": fault(new_head, "not_in_optimiser", ("frozen_parameters", "not_learning"), "gradual_unfreezing"),
    "plain_list": fault(plants.renew_optimiser(plain_list), "not_in_optimiser", ("not_learning",), "charges"),
    "head_only": fault(plants.forget_layers, "not_in_optimiser", ("not_learning",), "hear_chirps"),
    "never_thawed": fault(never_thawed, "frozen_parameters", ("not_learning",), "gradual_unfreezing"),
    "frozen_body": fault(
        plants.freeze("stem", "blocks"), "frozen_parameters", ("not_in_optimiser", "not_learning"), "hybrid_attention"
    ),
    "frozen_cell": fault(
        plants.freeze("cell"), "frozen_parameters", ("not_in_optimiser", "not_learning"), "bits_to_remember"
    ),
    "never_cleared": fault(plants.never_clear, "stale_gradients", ("lr_too_high", *_LOUD), "patch_forecast"),
    "clears_each_epoch": fault(clears_each_epoch, "stale_gradients", ("lr_too_high", *_LOUD), "step_by_closure"),
    "leaves_the_graph": fault(leaves_the_graph, "detached_graph", ("not_learning", "not_in_optimiser"), "segment"),
    "cut_words": fault(plants.cut_after("cell"), "detached_graph", ("not_learning",), "sentence_pairs"),
    "never_averaged": fault(never_averaged, "stale_copy", (), "mean_teacher", same_loss=False),
    "softmax_in_model": fault(
        plants.renew_optimiser(plants.end_in(nn.Softmax(-1))),
        "wrong_output_activation",
        _LOSS,
        "hear_chirps",
    ),
    "sigmoid_in_loop": fault(plants.sigmoid_in_loop, "wrong_output_activation", _LOSS, "link_prediction"),
    "relu_output": fault(
        plants.renew_optimiser(plants.end_in(nn.ReLU())), "wrong_output_activation", FLOW, "log_prices"
    ),
    "scores_as_log_probabilities": fault(
        plants.other_loss(nn.NLLLoss()),
        "wrong_loss",
        ("wrong_output_activation", "lr_too_high", *_LOUD),
        "inverted_residuals",
        same_loss=False,
    ),
    "probabilities_for_logarithms": fault(
        probabilities_for_logarithms, "wrong_loss", ("wrong_output_activation", *FLOW), "hints", same_loss=False
    ),
    "other_sign": fault(plants.wrong_sign, "wrong_loss", ("lr_too_high", *_LOUD), "separate", same_loss=False),
    "against_the_critic": fault(
        against_the_critic, "wrong_loss", ("not_learning",), "deterministic_policy", same_loss=False
    ),
    "broadcast": fault(plants.flat_targets, "wrong_label_shape", ("not_learning",), "log_prices"),
    "shuffled": fault(plants.shuffle_labels, "wrong_labels", ("not_learning",), "hear_chirps", "keypoints"),
    "shifted": fault(plants.shift_pairs, "wrong_labels", ("not_learning",), "charges"),
    "drawn_anew": fault(plants.draw_labels_anew, "wrong_labels", ("not_learning",), "arc_margin"),
    "sorted": fault(
        plants.sort_by_class,
        "data_order",
        ("lr_too_high", *_LOUD),
        "inverted_residuals",
        same_loss=False,
    ),
    "leak": fault(plants.target_as_feature, "target_leakage", (), "log_prices", same_loss=False),
    "not_shifted": fault(
        plants.change_batches(lambda x, y: (x, x)),
        "target_leakage",
        ("wrong_labels",),
        "linear_attention",
        same_loss=False,
    ),
    "one_sample_again": fault(one_sample_again, "constant_input", ("wrong_labels", *FLOW), "inverted_residuals"),
    "scaled_twice": fault(
        plants.inputs_times(1 / 65025), "unnormalised_input", ("lr_too_low", *FLOW), "hybrid_attention"
    ),
    "bytes": fault(plants.inputs_times(80.0, 127.0), "unnormalised_input", ("lr_too_high", *_LOUD), "ensemble"),
    "a_column_of_dates": fault(
        plants.first_column_times(100.0, 2e5),
        "unnormalised_input",
        ("lr_too_high", *_LOUD),
        "log_prices",
    ),
    "small_units": fault(
        plants.targets_times(2000.0, 50000.0),
        "unnormalised_target",
        ("lr_too_low", "too_few_steps", *FLOW),
        "charges",
        same_loss=False,
    ),
    "without_one_class": fault(without_one_class, "class_missing", (), "arc_margin", same_loss=False),
    "hardly_positive": fault(
        hardly_positive, "class_imbalance", ("lr_too_low", "not_learning"), "numeric_tokens", same_loss=False
    ),
    "time_first": fault(plants.time_first, "wrong_axis", ("not_learning", "wrong_labels"), "bits_to_remember"),
    "eval_mode": fault(plants.eval_mode, "wrong_mode", ("lr_too_high", *_LOUD), "digits_cutmix"),
    "slow_statistics": fault(
        each(nn.BatchNorm2d, lambda norm: setattr(norm, "momentum", 1e-4)),
        "eval_mismatch",
        (),
        "inverted_residuals",
        same_loss=False,
    ),
    "drops_nearly_all": fault(
        plants.drop(0.97), "over_regularised", ("too_few_steps", "not_learning"), "inverted_residuals"
    ),
    "decay_of_30": fault(plants.decay(30.0), "over_regularised", ("lr_too_high", *FLOW), "log_prices"),
    "penalty_of_weights": fault(
        penalty_of_weights, "over_regularised", ("wrong_loss", *FLOW), "keypoints", same_loss=False
    ),
    "heavy_prior": fault(heavy_prior, "over_regularised", ("wrong_loss", *FLOW), "annealed_vae", same_loss=False),
    "decays_gains": fault(decays_gains, "decayed_gains", ("over_regularised", *FLOW), "hybrid_attention"),
    "weights_times_15": fault(plants.weights_times(15.0), "bad_init", ("lr_too_low", *FLOW), "ensemble"),
    "normal_weights": fault(
        plants.normal_weights(1.0),
        "bad_init",
        ("lr_too_high", "lr_too_low", "attention_collapse", *FLOW),
        "linear_attention",
    ),
    "equal_weights": fault(plants.change_weights(lambda weight: weight.fill_(0.05)), "bad_init", FLOW, "hints"),
    "all_zero": fault(plants.zero_weights, "bad_init", FLOW, "imitate"),
    "biases_far_below": fault(plants.biases_far_below, "dead_units", ("bad_init", *FLOW), "list_net"),
    "multiplied_logits": fault(
        each(nn.Module, lambda one: multiplies_logits(one) if hasattr(one, "qkv") else None),
        "attention_collapse",
        ("bad_init", "lr_too_high", *FLOW),
        "numeric_tokens",
    ),
    "loud_blocks": fault(each(Residual, loud), "masked_growth", ("bad_init", "lr_too_low", *FLOW), "hybrid_attention"),
    "closed_blocks": fault(plants.close_branches, "idle_branch", ("detached_graph",), "hybrid_attention"),
    "no_activations": fault(plants.drop_activations, "missing_activation", _SLOW, "charges"),
    "deep_and_small": fault(
        plants.renew_optimiser(deep_and_small),
        "vanishing_gradient",
        ("bad_init", "lr_too_low", "not_learning", "rank_collapse"),
        "step_by_closure",
    ),
    "growing_state": fault(
        of_cell(nn.RNN(2, 32, nonlinearity="relu", batch_first=True), 0.7),
        "exploding_gradient",
        ("bad_init", "lr_too_high", *_LOUD),
        "bits_to_remember",
    ),
    "saturated_state": fault(
        of_cell(nn.RNN(2, 32, batch_first=True), 2.0), "saturated_units", ("bad_init", *FLOW), "bits_to_remember"
    ),
    "sixteen_bits": fault(
        plants.sixteen_bits, "low_precision", ("lr_too_low", "not_learning"), "log_prices", same_loss=False
    ),
    "root_of_zero": fault(root_of_zero, "nan_origin", ("not_learning",), "alike_or_not"),
    "flat_series": fault(flat_series, "nan_origin", ("not_learning",), "patch_forecast"),
    "broken_record": fault(
        broken_record, "loss_spike", ("lr_too_high", "unnormalised_target", "exploding_gradient"), "step_by_closure"
    ),
    "broadcast_and_stale": Fault(
        two(plants.never_clear, plants.flat_targets),
        ("wrong_label_shape", "stale_gradients"),
        ("lr_too_high", *_LOUD),
        ("step_by_closure",),
    ),
}


def _left(program: Program, twin: Program) -> float:
    """The share of the spread of a program's own targets that its outputs leave."""
    pairs = [(program.before_loss(program.outputs(x)), y) for x, y in program.batches[-20:]]
    out, y = (torch.cat(part).float() for part in zip(*pairs, strict=True))
    return float((out - y).square().mean() / y.var())


def _in_eval(program: Program, twin: Program) -> float:
    program.model.eval()
    return by_twin(program, twin)


def _of_average(program: Program, twin: Program) -> float:
    program.model.fast = program.model.slow
    return by_twin(program, twin)


def _reward(program: Program, twin: Program) -> float:
    return -float(program.extra.get("reward", -1.0))


def _reconstructed(program: Program, twin: Program) -> float:
    return sum(
        float(functional.binary_cross_entropy_with_logits(program.model(x)[0], y)) for x, y in twin.batches[-20:]
    )


MEASURES: dict[str, Measure] = {
    "small_units": _left,
    "sixteen_bits": _left,
    "slow_statistics": _in_eval,
    "never_averaged": _of_average,
    "against_the_critic": _reward,
    "heavy_prior": _reconstructed,
}

GROUP = Group(HEALTHY, FAULTS)
