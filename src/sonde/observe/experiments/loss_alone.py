"""The loss by itself: what outputs it asks for, with any output at its disposal and with those the model can give.

N samples, C outputs.  The loss is a function of (output, y); everything here is differentiated with respect to free
outputs, never to weights.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sonde.observe.experiments.copies import Loss

STEPS = 150
RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "Softmax": lambda u: u.softmax(-1),
    "LogSoftmax": lambda u: u.log_softmax(-1),
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Relu": torch.relu,
    "Threshold": torch.relu,
    "Softplus": torch.nn.functional.softplus,
}
"""Output activations by the name of their operation, as maps from free numbers to what they can give."""


def probe_loss(loss: Loss, output: Tensor, y: Any, operation: str | None, kind: str) -> dict[str, Any]:
    """All that is asked of a loss; a question that it cannot be asked is left out."""
    found: dict[str, Any] = {}
    into = RANGES.get(operation or "", _any)
    scale = _scale(output, y)
    ask = _Ask(loss, output, y, scale, operation)
    with torch.enable_grad():
        maps = ask.ranges(into)
        found |= ask.number("trivial", lambda: min(ask.lowest(one, constant=True)[0] for one in maps))
        found |= ask.number("floor", lambda: min(ask.lowest(one, constant=False)[0] for one in maps))
        found |= ask.number("floor_in_range", lambda: ask.lowest(into, constant=False)[0])
        for name, question in (
            ("ignores_pairing", ask.ignores_pairing),
            ("over_the_batch", lambda: ask.is_over_the_batch(kind)),
            ("pushes_away", lambda: ask.pushes_away(kind)),
            ("is_quadratic", ask.is_quadratic),
            ("unbounded", lambda: None if operation in RANGES else ask.is_unbounded(kind)),
            ("is_improper", lambda: ask.is_improper(into, kind)),
        ):
            try:
                answer = question()
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                continue
            if answer is not None:
                found[name] = answer
    return found


def compares_samples(loss: Loss, output: Tensor, y: Any) -> bool:
    """Whether it is all the same to a loss which output is which: one of distances between samples, not of classes."""
    if output.dim() < 2 or output.shape[-1] < 2:
        return False
    z = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    try:
        here, turned = (float(loss(one, y).detach().double().mean()) for one in (z, z.roll(1, -1)))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return False
    return abs(here - turned) <= 1e-6 * abs(here)


def _any(u: Tensor) -> Tensor:
    return u


def _scale(output: Tensor, y: Any) -> float:
    """The size of numbers to move outputs by: theirs, and that of targets of the same kind."""
    sizes = [float(output.detach().double().square().mean().sqrt())]
    if isinstance(y, Tensor) and y.is_floating_point():
        sizes.append(float(y.double().square().mean().sqrt()))
    return max([1.0, *(size for size in sizes if math.isfinite(size))])


class _Ask:
    def __init__(self, loss: Loss, output: Tensor, y: Any, scale: float, operation: str | None) -> None:
        self.ends_linear = operation in ("Addmm", "Mm", "Linear", "Add")  # then classes come last
        self.loss, self.output, self.y, self.scale = loss, output.detach(), y, scale
        self.rng = torch.Generator().manual_seed(0)

    def number(self, name: str, question: Callable[[], float]) -> dict[str, float]:
        try:
            value = question()
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return {}
        return {name: value} if math.isfinite(value) else {}

    def draw(self) -> Tensor:
        made = torch.randn(self.output.shape, generator=self.rng, dtype=torch.float64)
        return made.to(self.output)

    def value(self, z: Tensor, y: Any = None) -> float:
        return float(self.loss(z, self.y if y is None else y).detach().double().mean())

    def ranges(self, own: Callable[[Tensor], Tensor]) -> list[Callable[[Tensor], Tensor]]:
        """What outputs to let the loss choose from: any, if it is made for any; else the model's, or probabilities."""
        best, runs_away = self.lowest(_any, constant=False)
        if runs_away:  # the loss falls without end: it is made for outputs of some range, as the model has
            return [own]
        beyond = own is not _any and best < 0 <= self.lowest(own, constant=False)[0]  # as for log p of p > 1
        if best < math.inf and not beyond:
            return [_any, own]
        return [own, *(one for one in (RANGES["Sigmoid"], RANGES["Softmax"]) if self.tells_apart(one))]

    def tells_apart(self, into: Callable[[Tensor], Tensor]) -> bool:
        """Whether an answer for each sample is better than one for all, by a fifth of what there is to gain."""
        (all_alike, _), (each, _) = (self.lowest(into, constant=constant) for constant in (True, False))
        start = self.value(into(torch.full_like(self.output, 0.5))) if each < math.inf else math.inf
        return each < all_alike < math.inf and all_alike - each >= 0.2 * (start - each)

    def lowest(self, into: Callable[[Tensor], Tensor], *, constant: bool) -> tuple[float, bool]:
        """The lowest loss over outputs of one's own choice, for each sample or one for all; infinite if it has none.

        And whether it goes on falling as they grow.
        """
        shape = list(self.output.shape)
        if constant:
            shape = [1] * (len(shape) - 1) + shape[-1:] if len(shape) > 1 else [1]
            if self.output.dim() > 3:
                shape = [1, self.output.shape[1], *[1] * (self.output.dim() - 2)]
        u = (0.5 + 0.01 * torch.randn(shape, generator=self.rng)).to(self.output).requires_grad_()
        walk = torch.optim.Adam([u], lr=0.2 * self.scale)
        losses: list[float] = []
        for step in range(STEPS):
            walk.param_groups[0]["lr"] = 0.2 * self.scale * (1 - step / STEPS)
            try:
                value = self.loss(into(u).expand_as(self.output), self.y)
            except (RuntimeError, ValueError, IndexError):
                return math.inf, False  # these outputs are not for this loss
            losses.append(float(value.detach()))
            walk.zero_grad()
            torch.autograd.backward(value, inputs=[u])  # the loss may hold parameters of the run
            if not math.isfinite(losses[-1]) or u.grad is None or not bool(u.grad.isfinite().all()):
                return math.inf, False
            walk.step()
        best = min(losses)
        with torch.no_grad():
            ends = [float(self.loss(into(u * far).expand_as(self.output), self.y)) for far in (10.0, 100.0)]
        return best, min(ends) < best - 0.05 * abs(losses[0] - best)

    def ignores_pairing(self) -> bool | None:
        """Whether it is all the same to the loss which target belongs to which sample, though not what they are."""
        if not isinstance(self.y, Tensor) or self.y.dim() == 0 or len(self.y) < 4:
            return None
        if bool((self.y == self.y[:1]).all()) or len(self.y) != len(self.output):
            return None
        z = self.draw().abs().clamp(0.05, 0.95) * self.scale
        here = self.value(z)
        orders = [torch.randperm(len(self.y), generator=self.rng) for _ in range(3)]
        same = all(abs(self.value(z, self.y[order]) - here) <= 1e-5 * abs(here) for order in orders)
        return same and abs(self.value(z, self.y[:1].expand_as(self.y)) - here) > 1e-5 * abs(here)

    def is_over_the_batch(self, kind: str) -> bool | None:
        """Whether a class may be raised for all samples at once without a change, as if samples competed for it."""
        if kind not in ("classes", "one-hot") or self.output.dim() not in (2, 3) or len(self.output) < 4:
            return None
        if self.output.dim() == 3 and (not isinstance(self.y, Tensor) or self.y.shape != self.output.shape[:2]):
            return None  # classes do not come last
        if self.output.dim() == 3 and self.output.shape[1] == self.output.shape[2] and not self.ends_linear:
            return None
        z = self.draw()
        by_class = torch.randn(z.shape[-1], generator=self.rng).to(z)
        by_sample = torch.randn((*z.shape[:-1], 1), generator=self.rng).to(z)
        here, classes, samples = self.value(z), self.value(z + by_class), self.value(z + by_sample)
        return abs(classes - here) <= 1e-4 * abs(here) < abs(samples - here)

    def pushes_away(self, kind: str) -> float | None:
        """The share of samples whose output would move away from its target."""
        if not isinstance(self.y, Tensor):
            return None
        z = self.draw().mul(0.1 * self.scale).add(0.5 * self.scale if kind == "real" else 0.5)
        z = z.requires_grad_()
        (grad,) = torch.autograd.grad(self.loss(z, self.y), z)
        if kind == "classes" and z.dim() == 2 and self.y.dim() == 1:
            toward = -grad.gather(1, self.y[:, None].long())[:, 0]
        elif self.y.shape == z.shape and kind in ("real", "binary", "one-hot", "labels"):
            toward = (grad * (z.detach() - self.y)).flatten(1).sum(1) if z.dim() > 1 else grad * (z.detach() - self.y)
        else:
            return None
        there = toward != 0
        return float((toward[there] < 0).double().mean()) if bool(there.any()) else None

    def is_unbounded(self, kind: str) -> bool | None:
        """Whether a loss of classes falls for ever, in proportion, as the right output grows."""
        if kind != "classes" or self.output.dim() != 2 or not isinstance(self.y, Tensor) or self.y.dim() != 1:
            return None
        right = torch.zeros_like(self.output).scatter_(1, self.y[:, None].long(), 1.0)
        near, far, farther = (self.value(right * reach) for reach in (1.0, 100.0, 200.0))
        return far - near < -50 and abs((farther - far) / (far - near) * 99 / 100 - 1) < 0.05

    def is_quadratic(self) -> bool:
        """Whether the loss along a line of outputs is a parabola: squared error, whatever its name."""
        z, way = self.draw().double().abs() * 0.3 + 0.2, self.draw().double().abs() * 0.1
        y = self.y.double() if isinstance(self.y, Tensor) and self.y.is_floating_point() else self.y
        a, b, c, d = (float(self.loss(z + k * way, y).detach()) for k in range(4))
        second, third = c - 2 * b + a, d - 3 * c + 3 * b - a
        return abs(second) > 1e-9 and abs(third) < 1e-6 * abs(second)

    def is_improper(self, into: Callable[[Tensor], Tensor], kind: str) -> bool | None:
        """Whether three ones in ten ask for an answer other than their share or its logit."""
        if kind == "classes":
            return self._is_improper_for_classes(into)
        if kind not in ("binary", "labels") or not isinstance(self.y, Tensor) or self.y.shape != self.output.shape:
            return None
        many = max(10, len(self.y) // 10 * 10)
        y = (torch.arange(many) % 10 < 3).to(self.y).reshape(-1, *[1] * (self.y.dim() - 1))
        y = y.expand(-1, *self.y.shape[1:]).contiguous()
        grid = torch.linspace(-6, 6, 241, dtype=torch.float64)
        answers = [float(into(t[None, None])) if into is not RANGES["Softmax"] else float(t.sigmoid()) for t in grid]
        losses = [float(self.loss(torch.full_like(y, answer), y).detach()) for answer in answers]
        if not all(map(math.isfinite, losses)):
            return None
        return _asks_for_another(answers[losses.index(min(losses))])

    def _is_improper_for_classes(self, into: Callable[[Tensor], Tensor]) -> bool | None:
        """The same with three samples in ten of the first class and the others of the second."""
        if self.output.dim() != 2 or self.output.shape[1] < 2 or not isinstance(self.y, Tensor) or self.y.dim() != 1:
            return None
        y = (torch.arange(20) % 10 >= 3).to(self.y)
        asked = []
        for shares in (True, False):
            grid = torch.linspace(0, 1, 101).tolist() if shares else torch.linspace(-6, 6, 241).tolist()
            if not shares and into is not _any:
                continue
            losses = []
            for answer in grid:
                z = torch.full((20, self.output.shape[1]), 1e-6 if shares else -20.0).to(self.output)
                z[:, 0], z[:, 1] = (answer, 1 - answer) if shares else (answer, 0.0)
                losses.append(float(self.loss(z.clamp_min(1e-6) if shares else z, y).detach()))
            if all(map(math.isfinite, losses)):
                asked.append(grid[losses.index(min(losses))])
        return all(map(_asks_for_another, asked)) if asked else None


def _asks_for_another(answer: float) -> bool:
    """Whether an answer is neither three in ten nor its logit."""
    return min(abs(answer - 0.3), abs(answer - math.log(0.3 / 0.7))) > 0.1
