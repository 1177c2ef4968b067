"""Faults, each planted in some recipes: a function that changes a program, the right names for it, and where it goes.

A finding is right if it is among `faults` (the cause) or `also` (a symptom of it, or another remedy that helps).
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from recipes import HEALTHY, Program
from torch import nn
from torch.nn import functional

FLOW = ("vanishing_gradient", "exploding_gradient", "dead_units", "saturated_units", "nan_origin", "not_learning")


@dataclass(frozen=True)
class Fault:
    plant: Callable[[Program], None]
    faults: tuple[str, ...]
    also: tuple[str, ...]
    recipes: tuple[str, ...]


def rate(factor: float) -> Callable[[Program], None]:
    def plant(program: Program) -> None:
        for group in program.optimizer.param_groups:
            for name in {"lr", "initial_lr", "max_lr", "min_lr"} & group.keys():
                group[name] *= factor
        for schedule in _schedules(program):
            schedule.base_lrs = [factor * known for known in schedule.base_lrs]

    return plant


def _schedules(program: Program) -> list[Any]:
    cells = getattr(program.after_step, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells if hasattr(cell.cell_contents, "base_lrs")]


def rebuild(program: Program, keep: Callable[[str], bool]) -> None:
    """Give the optimiser only some of the parameters."""
    options = {key: value for key, value in program.optimizer.param_groups[0].items() if key != "params"}
    options.pop("initial_lr", None)
    kept = [p for name, p in program.model.named_parameters() if keep(name)]
    kind: Any = type(program.optimizer)
    made = kind([{**options, "params": kept}], lr=options["lr"])
    for schedule in _schedules(program):
        schedule.optimizer = made
    program.optimizer = made


def _middle(program: Program) -> set[str]:
    """Names of the parameters of layers, without the last one and without norms."""
    matrices = [name for name, p in program.model.named_parameters() if p.dim() > 1]
    last = matrices[-1].rpartition(".")[0]
    return {name for name, _ in program.model.named_parameters() if name.rpartition(".")[0] != last}


def forget_layers(program: Program) -> None:
    left = _middle(program)
    rebuild(program, lambda name: name not in left)


def freeze_layers(program: Program) -> None:
    for name, parameter in program.model.named_parameters():
        if name in _middle(program):
            parameter.requires_grad_(False)
    rebuild(program, lambda name: name not in _middle(program))


def never_clear(program: Program) -> None:
    program.clears = False


def softmax_in_loop(program: Program) -> None:
    program.before_loss = lambda out: out.softmax(-1)


def softmax_in_model(program: Program) -> None:
    program.model = nn.Sequential(program.model, nn.Softmax(-1))


def weights_times(factor: float) -> Callable[[Program], None]:
    def plant(program: Program) -> None:
        with torch.no_grad():
            for parameter in program.model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(factor)

    return plant


def all_equal_weights(program: Program) -> None:
    for parameter in program.model.parameters():
        if parameter.dim() > 1:
            nn.init.constant_(parameter, 0.01)


def inputs_times(factor: float, offset: float = 0.0) -> Callable[[Program], None]:
    def plant(program: Program) -> None:
        program.batches = [(factor * x + offset, y) for x, y in program.batches]

    return plant


def targets_times(factor: float) -> Callable[[Program], None]:
    def plant(program: Program) -> None:
        program.batches = [(x, factor * y) for x, y in program.batches]

    return plant


def shuffle_labels(program: Program) -> None:
    rng = torch.Generator().manual_seed(1)
    program.batches = [(x, y[torch.randperm(len(y), generator=rng)]) for x, y in program.batches]


def draw_labels_anew(program: Program) -> None:
    rng = torch.Generator().manual_seed(1)
    many = int(max(int(y.max()) for _, y in program.batches)) + 1
    program.batches = [(x, torch.randint(many, y.shape, generator=rng)) for x, y in program.batches]


def one_label(program: Program) -> None:
    program.batches = [(x, torch.zeros_like(y)) for x, y in program.batches]


def broadcast_targets(program: Program) -> None:
    program.batches = [(x, y[:, 0]) for x, y in program.batches]
    program.loss = lambda out, y: (out - y).square().mean()


def sort_by_class(program: Program) -> None:
    x, y = (torch.cat([batch[place] for batch in program.batches]) for place in (0, 1))
    order = y.argsort(stable=True)
    size = len(program.batches[0][1])
    program.batches = list(zip(x[order].split(size), y[order].split(size), strict=True))


def eval_mode(program: Program) -> None:
    program.model.eval()


def detach_middle(program: Program) -> None:
    first = next(module for module in program.model.modules() if isinstance(module, nn.ReLU | nn.GELU | nn.Tanh))
    first.register_forward_hook(lambda module, given, out: out.detach())


def no_grad_cell(program: Program) -> None:
    program.model.cell.register_forward_hook(lambda module, given, out: (out[0].detach(), out[1]))


def drop_activations(program: Program) -> None:
    for module in program.model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU | nn.Tanh | nn.GELU | nn.SiLU):
                setattr(module, name, nn.Identity())


def sigmoid_output(program: Program) -> None:
    program.model = nn.Sequential(program.model, nn.Sigmoid())


def relu_output(program: Program) -> None:
    program.model = nn.Sequential(program.model, nn.ReLU())


def wrong_sign(program: Program) -> None:
    before = program.loss
    program.loss = lambda out, y: -before(out, y)


def softmax_over_batch(program: Program) -> None:
    program.loss = lambda out, y: functional.nll_loss(out.log_softmax(0), y)


def absolute_error_on_classes(program: Program) -> None:
    program.loss = lambda out, y: (out.softmax(-1) - functional.one_hot(y, out.shape[-1])).abs().mean()


def log_of_outputs(program: Program) -> None:
    program.loss = lambda out, y: functional.nll_loss(out.log(), y)


def decay(strength: float) -> Callable[[Program], None]:
    def plant(program: Program) -> None:
        for group in program.optimizer.param_groups:
            group["weight_decay"] = strength

    return plant


def much_dropout(program: Program) -> None:
    for module in program.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.97


def few_steps(program: Program) -> None:
    program.batches = program.batches[:12]


def schedule_per_batch(program: Program) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(program.optimizer, 1, gamma=0.6)
    before = program.after_step

    def after(program: Program) -> None:
        before(program)
        schedule.step()

    program.after_step = after


def clip_to_nothing(program: Program) -> None:
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1e-4)  # type: ignore[assignment]


def sixteen_bits(program: Program) -> None:
    program.model.bfloat16()
    program.batches = [(x.bfloat16(), y) for x, y in program.batches]
    program.optimizer = torch.optim.SGD(program.model.parameters(), 1e-3)
    program.before_loss = lambda out: out.float()


def biases_far_below(program: Program) -> None:
    layers = [module for module in program.model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for module in layers[:-1]:
        nn.init.constant_(module.bias, -20.0)


def one_hot_attention(program: Program) -> None:
    with torch.no_grad():
        for module in program.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.in_proj_weight[: 2 * module.embed_dim].mul_(60.0)


def stack_plain_sigmoids(program: Program) -> None:
    inner = [part for _ in range(10) for part in (nn.Linear(64, 64), nn.Sigmoid())]
    program.model = nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), *inner, nn.Linear(64, 10))


def renew_optimiser(plant: Callable[[Program], None]) -> Callable[[Program], None]:
    """For faults that replace modules: the optimiser gets the parameters of the changed model."""

    def planted(program: Program) -> None:
        plant(program)
        rebuild(program, lambda name: True)

    return planted


FAULTS: dict[str, Fault] = {
    "rate_times_100": Fault(
        rate(100.0),
        ("lr_too_high",),
        (*FLOW, "too_few_steps", "rank_collapse", "masked_growth", "attention_collapse"),
        ("mlp_adam", "vit", "gpt", "regression", "encoder_post_norm_warm"),
    ),
    "rate_over_1000": Fault(
        rate(1e-3), ("lr_too_low",), ("too_few_steps", "not_learning"), ("mlp_momentum", "vit", "resnet", "gpt", "gru")
    ),
    "forgotten_layers": Fault(
        forget_layers, ("not_in_optimiser",), ("not_learning",), ("mlp_tanh_orthogonal", "gpt", "resnet", "vit")
    ),
    "frozen_layers": Fault(
        freeze_layers,
        ("frozen_parameters",),
        ("not_in_optimiser", "not_learning"),
        ("mlp_tanh_orthogonal", "resnet", "gpt"),
    ),
    "never_cleared": Fault(
        never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("mlp_momentum", "cnn", "regression")
    ),
    "softmax_in_the_loop": Fault(
        softmax_in_loop, ("wrong_output_activation",), ("wrong_loss", *FLOW), ("vit", "resnet", "mlp_adam")
    ),
    "softmax_in_the_model": Fault(
        renew_optimiser(softmax_in_model), ("wrong_output_activation",), ("wrong_loss", *FLOW), ("cnn", "gru", "graph")
    ),
    "weights_times_10": Fault(
        weights_times(10.0), ("bad_init",), (*FLOW, "lr_too_low"), ("mlp_tanh_orthogonal", "cnn", "mlp_momentum")
    ),
    "weights_times_30": Fault(
        weights_times(30.0),
        ("bad_init",),
        (*FLOW, "attention_collapse", "lr_too_low", "lr_too_high", "masked_growth"),
        ("gpt",),
    ),
    "equal_weights": Fault(all_equal_weights, ("bad_init",), FLOW, ("mlp_adam", "regression")),
    "inputs_times_1000": Fault(
        inputs_times(1000.0), ("unnormalised_input",), ("lr_too_high", *FLOW), ("mlp_momentum", "regression")
    ),
    "inputs_offset": Fault(
        inputs_times(1.0, 200.0), ("unnormalised_input",), ("lr_too_high", *FLOW), ("mlp_tanh_orthogonal", "cnn")
    ),
    "targets_times_1000": Fault(
        targets_times(1000.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", "exploding_gradient", "not_learning"),
        ("regression", "diabetes"),
    ),
    "labels_shuffled": Fault(shuffle_labels, ("wrong_labels",), ("not_learning",), ("mlp_adam", "cnn", "regression")),
    "labels_drawn_anew": Fault(
        draw_labels_anew, ("wrong_labels",), ("not_learning",), ("mlp_dropout", "cnn_batchnorm")
    ),
    "one_label": Fault(one_label, ("wrong_labels",), (), ("mlp_adam", "cnn")),
    "targets_broadcast": Fault(
        broadcast_targets, ("wrong_label_shape",), ("not_learning",), ("regression", "diabetes")
    ),
    "sorted_by_class": Fault(sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("mlp_momentum", "cnn")),
    "in_eval_mode": Fault(eval_mode, ("wrong_mode",), FLOW, ("mlp_batchnorm", "resnet")),
    "detached": Fault(detach_middle, ("detached_graph",), ("not_learning",), ("mlp_adam", "autoencoder")),
    "detached_cell": Fault(no_grad_cell, ("detached_graph",), ("not_learning",), ("gru",)),
    "no_activations": Fault(
        drop_activations, ("missing_activation",), ("not_learning", "too_few_steps"), ("regression",)
    ),
    "sigmoid_output": Fault(
        renew_optimiser(sigmoid_output),
        ("wrong_output_activation",),
        ("unnormalised_target", "wrong_loss", *FLOW),
        ("regression", "multi_label", "autoencoder"),
    ),
    "wrong_sign": Fault(wrong_sign, ("wrong_loss",), ("lr_too_high", *FLOW), ("mlp_adam", "gru")),
    "softmax_over_batch": Fault(
        softmax_over_batch, ("wrong_loss",), ("wrong_output_activation", "not_learning"), ("mlp_adam", "cnn")
    ),
    "log_of_outputs": Fault(log_of_outputs, ("nan_origin", "wrong_loss"), ("not_learning",), ("mlp_adam",)),
    "decay_of_10": Fault(decay(10.0), ("over_regularised",), FLOW, ("cnn_batchnorm", "diabetes", "gpt")),
    "dropout_of_97": Fault(much_dropout, ("over_regularised",), ("not_learning", "too_few_steps"), ("mlp_dropout",)),
    "twelve_steps": Fault(few_steps, ("too_few_steps",), ("lr_too_low", "not_learning"), ("gru", "mlp_adam")),
    "schedule_per_batch": Fault(
        schedule_per_batch, ("lr_too_low",), ("too_few_steps", "not_learning"), ("mlp_momentum", "gru", "vit")
    ),
    "clipped_to_nothing": Fault(clip_to_nothing, ("lr_too_low",), ("not_learning",), ("mlp_momentum",)),
    "sixteen_bits": Fault(sixteen_bits, ("low_precision",), ("lr_too_low", "not_learning"), ("mlp_adam",)),
    "biases_far_below": Fault(biases_far_below, ("bad_init", "dead_units"), FLOW, ("mlp_adam", "cnn")),
    "one_hot_attention": Fault(
        one_hot_attention, ("attention_collapse",), ("bad_init", *FLOW), ("encoder_post_norm_warm",)
    ),
    "ten_sigmoid_layers": Fault(
        renew_optimiser(stack_plain_sigmoids),
        ("vanishing_gradient",),
        ("bad_init", "lr_too_low", "not_learning", "saturated_units"),
        ("mlp_adam",),
    ),
}


def build(recipe: str, fault: str | None, seed: int) -> Program:
    """A program with a fault, or its mended twin without one."""
    torch.manual_seed(seed)
    program = HEALTHY[recipe](seed)
    if fault is not None:
        FAULTS[fault].plant(program)
    return program


def cases() -> list[tuple[str, str | None]]:
    """All programs: recipes alone, and with a fault each."""
    faulty = [(recipe, name) for name, fault in FAULTS.items() for recipe in fault.recipes]
    return [*((recipe, None) for recipe in HEALTHY), *faulty]
