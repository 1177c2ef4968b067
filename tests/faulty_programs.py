"""Small training programs, each with one fault or none, as a user would write them."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.analysis.diagnosis.finding import Findings

STEPS = 120


@dataclass
class Program:
    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    optimiser: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    steps: int = STEPS
    batch: int = 32
    clears: bool = True
    other: torch.optim.Optimizer | None = None  # a second optimiser

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        rng = torch.Generator().manual_seed(0)
        places = [torch.randint(len(self.x), (self.batch,), generator=rng) for _ in range(self.steps)]
        return [(self.x[place], self.y[place]) for place in places]

    def watched(self, **options: Any) -> Any:
        """The watch, after training under it."""
        optimisers = [self.optimiser, *([self.other] if self.other else [])]
        watch = sonde.watch(self.model, *optimisers, loss=self.loss, **{"runs": None, **options})
        for x, y in self.batches():
            if self.clears:
                self.model.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
            watch.log(loss)
        return watch

    def diagnosed(self, *, experiments: bool = True) -> Findings:
        watch = self.watched()
        found: Findings = watch.diagnose(batch=self.batches()[0] if experiments else None)
        watch.close()
        return found


def layers(*sizes: int, act: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    made: list[nn.Module] = []
    for place, (wide, out) in enumerate(itertools.pairwise(sizes)):
        made.append(nn.Linear(wide, out))
        if act is not None and place < len(sizes) - 2:
            made.append(act())
    return nn.Sequential(*made)


def blobs(classes: int = 5) -> tuple[Tensor, Tensor]:
    """Classes that a linear map nearly separates."""
    centres, y = 1.5 * torch.randn(classes, 10), torch.randint(classes, (800,))
    return centres[y] + torch.randn(800, 10), y


def checkers() -> tuple[Tensor, Tensor]:
    """Two classes that no linear map separates."""
    x = 2 * torch.rand(800, 2) - 1
    return x, (x[:, 0] * x[:, 1] > 0).long()


def waves() -> tuple[Tensor, Tensor]:
    x = torch.randn(800, 2)
    return x, torch.sin(x[:, :1]) + 0.5 * x[:, 1:]


def of_classes(model: nn.Module, rate: float = 3e-3, **more: Any) -> Program:
    x, y = blobs()
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), rate), x, y, **more)


def of_numbers(model: nn.Module, rate: float = 1e-2, scale: float = 1.0, **more: Any) -> Program:
    x, y = waves()
    optimiser = torch.optim.Adam(model.parameters(), rate)
    return Program(model, functional.mse_loss, optimiser, x, scale * y, **more)


# Without a fault


def plain() -> Program:
    return of_classes(layers(10, 32, 32, 5))


def noisy_labels() -> Program:
    program = plain()
    wrong = torch.rand(len(program.y)) < 0.3
    program.y = torch.where(wrong, torch.randint(5, program.y.shape), program.y)
    return program


def regression() -> Program:
    return of_numbers(layers(2, 32, 32, 1))


def head_on_a_trained_backbone() -> Program:
    source = of_classes(layers(10, 32, 16, 5))
    source.watched().close()
    backbone = source.model[:-1]
    backbone.requires_grad_(False).eval()
    head = nn.Linear(16, 5)
    program = of_classes(nn.Sequential(backbone, head), 1e-2)
    program.x, program.y = source.x, source.y
    program.optimiser = torch.optim.Adam(head.parameters(), 1e-2)
    return program


def normalised_residual() -> Program:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(functional.gelu(self.up(self.norm(x))))

    return of_classes(nn.Sequential(nn.Linear(10, 24), *(Block() for _ in range(6)), nn.Linear(24, 5)))


def autoencoder() -> Program:
    x = torch.rand(800, 2) @ torch.rand(2, 12) / 2
    model = nn.Sequential(*layers(12, 16, 4, 16, 12), nn.Sigmoid())
    return Program(model, functional.mse_loss, torch.optim.Adam(model.parameters(), 1e-2), x, x, steps=200)


HEALTHY = {
    f.__name__: f
    for f in (plain, noisy_labels, regression, head_on_a_trained_backbone, normalised_residual, autoencoder)
}


# With one


def wrong_label_shape() -> Program:
    program = of_numbers(layers(2, 32, 1))
    program.y = program.y[:, 0]
    program.loss = lambda out, y: (out - y).square().mean()
    return program


def wrong_loss() -> Program:
    def over_the_batch(out: Tensor, y: Tensor) -> Tensor:
        return functional.nll_loss(out.log_softmax(0), y)

    program = plain()
    program.loss = over_the_batch
    return program


def wrong_output_activation() -> Program:
    return of_classes(nn.Sequential(layers(10, 32, 5), nn.Softmax(-1)))


def wrong_labels() -> Program:
    program = of_classes(layers(10, 64, 64, 5), 1e-2)
    program.y = program.y[torch.randperm(len(program.y))]
    return program


def detached_graph() -> Program:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.above = layers(2, 8, 8), layers(8, 8, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.above(self.below(x).detach())
            return out

    x, y = checkers()
    model = Cut()
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), x, y)


def not_in_optimiser() -> Program:
    program = of_classes(layers(10, 8, 5))
    program.optimiser = torch.optim.Adam(program.model[-1].parameters(), 1e-2)
    return program


def frozen_parameters() -> Program:
    x, y = checkers()
    model = layers(2, 8, 8, 2)
    model[:-1].requires_grad_(False)
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), x, y)


def stale_gradients() -> Program:
    program = plain()
    program.clears = False
    return program


def wrong_mode() -> Program:
    return of_classes(nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5)).eval())


def idle_branch() -> Program:
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = layers(8, 8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.0 * self.branch(x)

    x, y = checkers()
    model = nn.Sequential(nn.Linear(2, 8), Closed(), Closed(), nn.Linear(8, 2))
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 5e-3), x, y)


def missing_activation() -> Program:
    x, y = checkers()
    model = layers(2, 16, 16, 2, act=None)
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), x, y)


def unnormalised_input() -> Program:
    program = of_classes(layers(10, 16, 5, act=nn.Tanh), 1e-3)
    program.x = program.x + 500
    return program


def unnormalised_target() -> Program:
    return of_numbers(layers(2, 16, 1), 1e-3, scale=1e4)


def bad_init() -> Program:
    program = of_classes(layers(10, 24, 24, 24, 24, 5))
    with torch.no_grad():
        for parameter in program.model.parameters():
            parameter.fill_(0.05)
    return program


def masked_growth() -> Program:
    program = normalised_residual()
    with torch.no_grad():
        for place, block in enumerate(program.model[1:-1]):
            block.down.weight.mul_(4.0 ** (place + 1))
    return program


def attention_collapse() -> Program:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.q, self.k = nn.Embedding(10, 16), nn.Linear(16, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            weights = (20 * self.q(h) @ (20 * self.k(h)).mT).softmax(-1)
            out: Tensor = self.head(weights @ h)[:, 0]
            return out

    x = torch.randint(10, (800, 6))
    model = Attending()
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-3), x, x[:, -1])


def over_regularised() -> Program:
    program = plain()
    program.optimiser = torch.optim.AdamW(program.model.parameters(), 3e-3, weight_decay=30.0)
    return program


def lr_too_high() -> Program:
    return of_classes(layers(10, 32, 32, 5), 1.0)


def too_few_steps() -> Program:
    return of_classes(layers(10, 32, 32, 5), steps=8)


def lr_too_low() -> Program:
    return of_classes(layers(10, 32, 32, 5), 1e-6)


def saturated_units() -> Program:
    program = of_classes(layers(10, 32, 32, 5, act=nn.Tanh))
    program.optimiser = torch.optim.SGD(program.model.parameters(), 1e-4)
    with torch.no_grad():
        for layer in program.model[:-1]:
            for parameter in layer.parameters():
                parameter.mul_(50)
    return program


def dead_units() -> Program:
    program = plain()
    nn.init.constant_(program.model[0].bias, -50.0)
    return program


def vanishing_gradient() -> Program:
    program = of_classes(layers(10, *[24] * 10, 5, act=nn.Sigmoid))
    program.optimiser = torch.optim.SGD(program.model.parameters(), 0.01)
    return program


def exploding_gradient() -> Program:
    program = of_classes(layers(10, *[48] * 8, 5), 1e-4)
    with torch.no_grad():
        for layer in program.model[::2]:
            layer.weight.normal_(0, 0.8)
    return program


def nan_origin() -> Program:
    program = of_numbers(layers(2, 16, 1))
    program.loss = lambda out, y: ((out - 10).log() - y).square().mean()
    return program


def data_order() -> Program:
    program = of_classes(layers(10, 32, 32, 5), 1e-2)
    program.loss = nn.CrossEntropyLoss()
    order = program.y.argsort()
    places = order.repeat_interleave(program.steps * program.batch // len(order) + 1)
    batches = [(program.x[part], program.y[part]) for part in places.split(program.batch)][: program.steps]
    program.batches = lambda: batches  # type: ignore[method-assign]
    return program


def class_imbalance() -> Program:
    program = of_classes(layers(10, 16, 5), 3e-3, steps=200, batch=128)
    rare = torch.rand(len(program.y)) < 0.05
    program.y = torch.where(rare, 1 + torch.randint(4, program.y.shape), 0)
    program.x = torch.randn(len(program.y), 10)
    program.loss = nn.CrossEntropyLoss()
    return program


def wrong_axis() -> Program:
    """A GRU that takes (samples, places, features) for (places, samples, features)."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(2, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.cell(x)[0][:, -1])
            return out

    x = torch.randn(256, 6, 2)
    model = Reader()
    y = (x[:, 0, 0] > 0).long()
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), x, y)


def target_leakage() -> Program:
    program = of_classes(layers(11, 32, 5))
    program.x = torch.cat([program.x, program.y[:, None].float()], 1)
    return program


def low_precision() -> Program:
    program = of_classes(layers(10, 32, 32, 5).bfloat16())
    program.optimiser = torch.optim.SGD(program.model.parameters(), 1e-4)
    program.x = program.x.bfloat16()
    program.loss = lambda out, y: functional.cross_entropy(out.float(), y)
    return program


def constant_input() -> Program:
    program = plain()
    program.x = program.x[:1].expand_as(program.x)
    return program


def class_missing() -> Program:
    """Six outputs for five classes."""
    return of_classes(layers(10, 32, 32, 6), batch=64)


class Tagger(nn.Module):
    """A number of each token of a sequence, from a table of tokens whose weights may be those of the head."""

    def __init__(self, tokens: int = 8) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(tokens, 16), layers(16, 32, 16), nn.Linear(16, tokens)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.table(x)))
        return out


def of_tokens(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out.flatten(0, 1), y.flatten())


def loss_over_padding() -> Program:
    x = torch.randint(1, 8, (800, 10)) * (torch.arange(10) < torch.randint(2, 9, (800, 1)))
    model = Tagger()
    return Program(model, of_tokens, torch.optim.Adam(model.parameters(), 1e-2), x, torch.where(x > 0, 8 - x, 0))


def untied_weights() -> Program:
    x = torch.randint(8, (800, 10))
    model = Tagger()
    model.head.weight = nn.Parameter(model.table.weight.detach().clone())
    return Program(model, of_tokens, torch.optim.Adam(model.parameters(), 1e-2), x, 7 - x)


def stale_copy() -> Program:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast = layers(10, 32, 5)
            self.slow = copy.deepcopy(self.fast).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fast(x)
            return out

    return of_classes(Averaged())


def two_optimisers() -> Program:
    program = plain()
    program.other = torch.optim.SGD(program.model.parameters(), 0.1, momentum=0.9)
    return program


def decayed_gains() -> Program:
    program = normalised_residual()
    gains, rest = ([p for p in program.model.parameters() if (p.dim() < 2) is flat] for flat in (True, False))
    groups = [{"params": rest}, {"params": gains, "weight_decay": 10.0}]
    program.optimiser = torch.optim.AdamW(groups, 3e-3)
    return program


def eval_mismatch() -> Program:
    program = of_classes(nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32, momentum=1e-5), layers(32, 32, 5)))
    program.x = 20 * program.x + 50
    return program


def missing_warmup() -> Program:
    """Post-norm blocks at a rate that they bear later only."""
    x, y = blobs()
    blocks = [nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(6)]
    model = nn.Sequential(nn.Unflatten(1, (5, 2)), nn.Linear(2, 16), *blocks, nn.Flatten(), nn.Linear(80, 5))
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 0.03), x, y, steps=60)


def loss_spike() -> Program:
    """A batch with other labels and large inputs, once the loss is low."""
    program = plain()
    batches = program.batches()
    x, y = batches[90]
    batches[90] = 30 * x, (y + 1) % 5
    program.batches = lambda: batches  # type: ignore[method-assign]
    return program


FAULTY = {
    f.__name__: f
    for f in (
        *(constant_input, class_missing, loss_over_padding, untied_weights, stale_copy),
        *(two_optimisers, decayed_gains, eval_mismatch, missing_warmup),
        *(loss_spike, data_order, class_imbalance, target_leakage, low_precision, wrong_axis),
        *(
            wrong_label_shape,
            wrong_loss,
            wrong_output_activation,
            wrong_labels,
            detached_graph,
            not_in_optimiser,
        ),
        *(
            frozen_parameters,
            stale_gradients,
            wrong_mode,
            idle_branch,
            missing_activation,
            unnormalised_input,
        ),
        *(unnormalised_target, bad_init, masked_growth, attention_collapse, over_regularised, lr_too_high),
        *(
            too_few_steps,
            lr_too_low,
            saturated_units,
            dead_units,
            vanishing_gradient,
            exploding_gradient,
            nan_origin,
        ),
    )
}
"""By the name of the diagnosis."""

ON_PURPOSE = {"class_missing", "decayed_gains", "stale_copy"}  # notes: they may be meant, or do no harm
