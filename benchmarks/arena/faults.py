"""Faults, each planted in some recipes: a function that changes a program, the right names for it, and where it goes.

A finding is right if it is among `faults` (the cause) or `also` (a symptom of it, or another remedy that helps).
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item"

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plants
import torch
from recipes import HEALTHY, Program
from torch import nn

FLOW = ("vanishing_gradient", "exploding_gradient", "dead_units", "saturated_units", "nan_origin", "not_learning")


@dataclass(frozen=True)
class Fault:
    plant: Callable[[Program], None]
    faults: tuple[str, ...]
    also: tuple[str, ...]
    recipes: tuple[str, ...]
    same_loss: bool = True  # whether the loss can be compared with that of the repaired twin


FAULTS: dict[str, Fault] = {
    "rate_times_100": Fault(
        plants.rate(100.0),
        ("lr_too_high",),
        (*FLOW, "too_few_steps", "rank_collapse", "masked_growth", "attention_collapse"),
        ("mlp_adam", "vit", "gpt", "regression", "encoder_post_norm_warm"),
    ),
    "rate_over_1000": Fault(
        plants.rate(1e-3),
        ("lr_too_low",),
        ("too_few_steps", "not_learning"),
        ("mlp_momentum", "vit", "resnet", "gpt", "gru"),
    ),
    "forgotten_layers": Fault(
        plants.forget_layers, ("not_in_optimiser",), ("not_learning",), ("mlp_tanh_orthogonal", "gpt", "resnet", "vit")
    ),
    "frozen_layers": Fault(
        plants.freeze_layers,
        ("frozen_parameters",),
        ("not_in_optimiser", "not_learning"),
        ("mlp_tanh_orthogonal", "resnet", "gpt"),
    ),
    "never_cleared": Fault(
        plants.never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("mlp_momentum", "cnn", "regression")
    ),
    "softmax_in_the_loop": Fault(
        plants.softmax_in_loop, ("wrong_output_activation",), ("wrong_loss", *FLOW), ("vit", "resnet", "mlp_adam")
    ),
    "sigmoid_in_the_loop": Fault(
        plants.sigmoid_in_loop, ("wrong_output_activation",), ("wrong_loss", "lr_too_low", *FLOW), ("multi_label",)
    ),
    "softmax_in_the_model": Fault(
        plants.renew_optimiser(plants.end_in(nn.Softmax(-1))),
        ("wrong_output_activation",),
        ("wrong_loss", *FLOW),
        ("cnn", "gru", "graph"),
    ),
    "weights_times_10": Fault(
        plants.weights_times(10.0), ("bad_init",), (*FLOW, "lr_too_low"), ("mlp_tanh_orthogonal", "cnn", "mlp_momentum")
    ),
    "weights_times_30": Fault(
        plants.weights_times(30.0),
        ("bad_init",),
        (*FLOW, "attention_collapse", "lr_too_low", "lr_too_high", "masked_growth"),
        ("gpt",),
    ),
    "equal_weights": Fault(
        plants.change_weights(lambda weight: weight.fill_(0.01)), ("bad_init",), FLOW, ("mlp_adam", "regression")
    ),
    "inputs_times_1000": Fault(
        plants.inputs_times(1000.0), ("unnormalised_input",), ("lr_too_high", *FLOW), ("mlp_momentum", "regression")
    ),
    "inputs_offset": Fault(
        plants.inputs_times(1.0, 200.0), ("unnormalised_input",), ("lr_too_high", *FLOW), ("mlp_tanh_orthogonal", "cnn")
    ),
    "targets_times_1000": Fault(
        plants.targets_times(1000.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", "exploding_gradient", "not_learning"),
        ("regression", "diabetes"),
    ),
    "labels_shuffled": Fault(
        plants.shuffle_labels, ("wrong_labels",), ("not_learning",), ("mlp_adam", "cnn", "regression")
    ),
    "labels_drawn_anew": Fault(
        plants.draw_labels_anew, ("wrong_labels",), ("not_learning",), ("mlp_dropout", "cnn_batchnorm")
    ),
    "one_label": Fault(plants.one_label, ("wrong_labels",), (), ("mlp_adam", "cnn"), same_loss=False),
    "targets_broadcast": Fault(
        plants.broadcast_targets, ("wrong_label_shape",), ("not_learning",), ("regression", "diabetes")
    ),
    "sorted_by_class": Fault(
        plants.sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("mlp_momentum", "cnn"), same_loss=False
    ),
    "in_eval_mode": Fault(plants.eval_mode, ("wrong_mode",), FLOW, ("mlp_batchnorm", "resnet")),
    "detached": Fault(plants.detach_middle, ("detached_graph",), ("not_learning",), ("mlp_adam", "autoencoder")),
    "detached_cell": Fault(plants.cut_after("cell"), ("detached_graph",), ("not_learning",), ("gru",)),
    "no_activations": Fault(
        plants.drop_activations, ("missing_activation",), ("not_learning", "too_few_steps"), ("regression",)
    ),
    "sigmoid_output": Fault(
        plants.renew_optimiser(plants.end_in(nn.Sigmoid())),
        ("wrong_output_activation",),
        ("unnormalised_target", "wrong_loss", *FLOW),
        ("regression", "multi_label", "autoencoder"),
    ),
    "wrong_sign": Fault(
        plants.wrong_sign, ("wrong_loss",), ("lr_too_high", *FLOW), ("mlp_adam", "gru"), same_loss=False
    ),
    "softmax_over_batch": Fault(
        plants.softmax_over_batch, ("wrong_loss",), ("wrong_output_activation", "not_learning"), ("mlp_adam", "cnn")
    ),
    "log_of_outputs": Fault(plants.log_of_outputs, ("nan_origin", "wrong_loss"), ("not_learning",), ("mlp_adam",)),
    "decay_of_10": Fault(plants.decay(10.0), ("over_regularised",), FLOW, ("cnn_batchnorm", "diabetes", "gpt")),
    "dropout_of_97": Fault(
        plants.drop(0.97), ("over_regularised",), ("not_learning", "too_few_steps"), ("mlp_dropout",)
    ),
    "twelve_steps": Fault(
        plants.few_steps(12), ("too_few_steps",), ("lr_too_low", "not_learning"), ("gru", "mlp_adam")
    ),
    "schedule_per_batch": Fault(
        plants.schedule_per_batch, ("lr_too_low",), ("too_few_steps", "not_learning"), ("mlp_momentum", "gru", "vit")
    ),
    "clipped_to_nothing": Fault(plants.clip_to_nothing, ("lr_too_low",), ("not_learning",), ("mlp_momentum",)),
    "sixteen_bits": Fault(plants.sixteen_bits, ("low_precision",), ("lr_too_low", "not_learning"), ("mlp_adam",)),
    "biases_far_below": Fault(plants.biases_far_below, ("bad_init", "dead_units"), FLOW, ("mlp_adam", "cnn")),
    "one_hot_attention": Fault(
        plants.one_hot_attention, ("attention_collapse",), ("bad_init", *FLOW), ("encoder_post_norm_warm",)
    ),
    "ten_sigmoid_layers": Fault(
        plants.sigmoid_stack(64, 64, 10, 10),
        ("vanishing_gradient",),
        ("bad_init", "lr_too_low", "not_learning", "saturated_units"),
        ("mlp_adam",),
    ),
}


class Group:
    """Programs that are scored together: recipes as they are, and with a fault each."""

    def __init__(
        self,
        healthy: Mapping[str, Callable[[int], Program]],
        faults: Mapping[str, Fault],
        faulty: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        self.healthy, self.faults = healthy, faults
        planted = ((recipe, name) for name, fault in faults.items() for recipe in fault.recipes)
        self.faulty = [*(planted if faulty is None else faulty)]

    def cases(self) -> list[tuple[str, str | None]]:
        """Names of recipes and of faults."""
        return [*((recipe, None) for recipe in self.healthy), *self.faulty]

    def build(self, recipe: str, fault: str | None, seed: int) -> Program:
        """A program with a fault, or its mended twin without one."""
        torch.manual_seed(seed)
        program = self.healthy[recipe](seed)
        if fault is not None:
            self.faults[fault].plant(program)
        return program


GROUP = Group(HEALTHY, FAULTS)
