"""The loss by itself: what outputs it asks for, with any output at its disposal and with those the model can give.

N samples, C outputs.  The loss is a function of (output, y); everything here is differentiated with respect to free
outputs, never to weights.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sonde.experiments.copies import Loss

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
    into = RANGES.get(operation or "", lambda u: u)
    scale = _scale(output, y)
    ask = _Ask(loss, output, y, scale)
    with torch.enable_grad():
        maps = [lambda u: u, RANGES["Sigmoid"], RANGES["Softmax"], into]
        found |= ask.number("trivial", lambda: min(ask.lowest(one, constant=True) for one in maps))
        found |= ask.number("floor", lambda: min(ask.lowest(one, constant=False) for one in maps))
        found |= ask.number("floor_in_range", lambda: ask.lowest(into, constant=False, given=True))
        for name, question in (
            ("ignores_pairing", ask.ignores_pairing),
            ("over_the_batch", lambda: ask.is_over_the_batch(kind)),
            ("pushes_away", lambda: ask.pushes_away(kind)),
            ("is_quadratic", ask.is_quadratic),
            ("unbounded", lambda: ask.is_unbounded(kind)),
            ("is_improper", lambda: ask.is_improper(into, kind)),
        ):
            try:
                answer = question()
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
                continue
            if answer is not None:
                found[name] = answer
    return found


def _scale(output: Tensor, y: Any) -> float:
    """The size of numbers to move outputs by: theirs, and that of targets of the same kind."""
    sizes = [float(output.detach().double().square().mean().sqrt())]
    if isinstance(y, Tensor) and y.is_floating_point():
        sizes.append(float(y.double().square().mean().sqrt()))
    return max([1.0, *(size for size in sizes if math.isfinite(size))])


class _Ask:
    def __init__(self, loss: Loss, output: Tensor, y: Any, scale: float) -> None:
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

    def lowest(self, into: Callable[[Tensor], Tensor], *, constant: bool, given: bool = False) -> float:
        """The lowest loss that is found, over outputs of one's own choice for each sample or one for all of them.

        Outputs that may grow without end, and the loss fall with them, are not what it is made for: infinite, unless
        they are those of the model.
        """
        shape = list(self.output.shape)
        if constant:
            shape = [1] * (len(shape) - 1) + shape[-1:] if len(shape) > 1 else [1]
            if self.output.dim() > 3:
                shape = [1, self.output.shape[1], *[1] * (self.output.dim() - 2)]
        u = (0.5 + 0.01 * torch.randn(shape, generator=self.rng)).to(self.output).requires_grad_()
        walk = torch.optim.Adam([u], lr=0.2 * self.scale)
        best, first = math.inf, math.inf
        for step in range(STEPS):
            walk.param_groups[0]["lr"] = 0.2 * self.scale * (1 - step / STEPS)
            try:
                value = self.loss(into(u).expand_as(self.output), self.y)
            except (RuntimeError, ValueError, IndexError):
                break  # these outputs are not for this loss
            here = float(value.detach())
            best = min(best, here) if math.isfinite(here) else best
            first = here if step == 0 else first
            walk.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if u.grad is None or not bool(u.grad.isfinite().all()):
                break
            walk.step()
        with torch.no_grad():
            ends = (
                [float(self.loss(into(u * far).expand_as(self.output), self.y)) for far in (10.0, 100.0)]
                if best < math.inf
                else []
            )
        runs_away = math.isfinite(first) and min(ends, default=best) < best - 0.05 * abs(first - best)
        return math.inf if runs_away and not given else best

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
        if kind not in ("classes", "one-hot") or self.output.dim() != 2 or len(self.output) < 4:
            return None
        z = self.draw()
        by_class = torch.randn(z.shape[1], generator=self.rng).to(z)
        by_sample = torch.randn(len(z), 1, generator=self.rng).to(z)
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
            toward = (
                (grad * (z.detach() - self.y)).flatten(1).sum(1)
                if z.dim() > 1
                else grad * (z.detach() - self.y)
            )
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
        if (
            kind not in ("binary", "labels")
            or not isinstance(self.y, Tensor)
            or self.y.shape != self.output.shape
        ):
            return None
        many = max(10, len(self.y) // 10 * 10)
        y = (torch.arange(many) % 10 < 3).to(self.y).reshape(-1, *[1] * (self.y.dim() - 1))
        y = y.expand(-1, *self.y.shape[1:]).contiguous()
        grid = torch.linspace(-6, 6, 241, dtype=torch.float64)
        answers = [
            float(into(t[None, None])) if into is not RANGES["Softmax"] else float(t.sigmoid()) for t in grid
        ]
        losses = [float(self.loss(torch.full_like(y, answer), y).detach()) for answer in answers]
        if not all(map(math.isfinite, losses)):
            return None
        asked = answers[losses.index(min(losses))]
        return min(abs(asked - 0.3), abs(asked - math.log(0.3 / 0.7))) > 0.1
