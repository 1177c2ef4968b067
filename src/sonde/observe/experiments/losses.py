"""The loss by itself: which outputs it asks for, among any outputs and among those that the model can give.

N samples, C outputs.  The loss is a function of (output, y); everything here is differentiated with respect to free
outputs, never to weights.
"""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.metrics.reductions import root_mean_square
from sonde.observe.experiments.copies import OutputLoss
from sonde.observe.facts import first_float, tensors

_STEPS = 150
_RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "Softmax": lambda u: u.softmax(-1),
    "LogSoftmax": lambda u: u.log_softmax(-1),
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Relu": torch.relu,
    "Threshold": torch.relu,
    "Softplus": torch.nn.functional.softplus,
}
"""Output activations by the name of their operation, as maps from free numbers to what they can give."""


_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""What a loss raises for arguments that it does not take."""


def probe_loss(loss: OutputLoss, output: Tensor, y: Any, operation: str | None, kind: str) -> dict[str, Any]:
    """Properties of a loss, by calling it with free outputs; those that cannot be measured are left out."""
    found: dict[str, Any] = {}
    into = _RANGES.get(operation or "", _any)
    scale = _scale(output, y)
    ask = _Questions(loss, output, y, scale, operation)
    with torch.enable_grad():
        found |= ask.bounds(into)
        found |= ask.number("floor_in_range", lambda: ask.lowest(into, constant=False)[0])
        for name, question in (
            ("ignores_pairing", ask.ignores_pairing),
            ("over_the_batch", lambda: ask.is_over_the_batch(kind)),
            ("pushes_away", lambda: ask.pushes_away(kind)),
            ("is_quadratic", ask.is_quadratic),
            ("unbounded", lambda: None if operation in _RANGES else ask.is_unbounded(kind)),
            ("is_improper", lambda: ask.is_improper(into, kind)),
        ):
            try:
                answer = question()
            except _REFUSALS:
                continue
            if answer is not None:
                found[name] = answer
    return found


def loss_bounds(loss: OutputLoss, output: Tensor, y: Any, operation: str | None) -> dict[str, float]:
    """The loss of the best constant answer (`trivial`) and the lowest (`floor`), as far as they can be measured."""
    with torch.enable_grad():
        return _Questions(loss, output, y, _scale(output, y), operation).bounds(_RANGES.get(operation or "", _any))


def compares_samples(loss: OutputLoss, output: Tensor, y: Any) -> bool:
    """Whether permuting the outputs changes nothing: a loss of distances between samples, not of classes."""
    if output.dim() < 2 or output.shape[-1] < 2:
        return False
    z = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    try:
        here, turned = (float(loss(one, y).detach().double().mean()) for one in (z, z.roll(1, -1)))
    except _REFUSALS:
        return False
    return abs(here - turned) <= 1e-6 * abs(here)


def _any(u: Tensor) -> Tensor:
    return u


def _scale(output: Tensor, y: Any) -> float:
    """The scale of outputs: the RMS of floating-point targets, else of the outputs, at least 1."""
    known = y if isinstance(y, Tensor) and y.is_floating_point() and y.numel() else output.detach()
    size = float(root_mean_square(known.double()))
    return max(1.0, size) if math.isfinite(size) else 1.0


def padding(loss: OutputLoss, output: Tensor, y: Any) -> dict[str, Any] | None:
    """Targets that fill up sequences of different lengths: their share and value, and whether the loss counts them."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dim() != 2 or y.shape[1] < 3:
        return None
    value = y[:, -1].mode().values
    at_end = (y == value).flip(1).int().cumprod(1).flip(1).bool()
    if not _pads(y, value, at_end):
        return None
    z = output.detach().clone().requires_grad_()
    with torch.enable_grad():
        (grad,) = torch.autograd.grad(loss(z, y).mean(), z)
    classes_second = grad.dim() == 3 and grad.shape[:2] != y.shape and grad.shape[::2] == y.shape
    grad = grad.movedim(1, -1) if classes_second else grad
    if grad.numel() % y.numel():
        return None
    places = grad.reshape(*y.shape, -1).abs().sum(2)
    return {
        "share": float(at_end.double().mean()),
        "value": float(value),
        "counted": bool((places[at_end] > 0).double().mean() > 0.5),
    }


def _pads(y: Tensor, value: Tensor, at_end: Tensor) -> bool:
    """Whether runs of the value end most sequences, in several lengths, and it occurs hardly anywhere else.

    Targets of two values mark a place, such as the end: 0…01…1.
    """
    lengths = at_end.sum(1)
    elsewhere = ((y == value) & ~at_end).double().mean()
    is_usual = float((lengths > 0).double().mean()) >= 0.5 and float(elsewhere) <= 0.05
    return is_usual and len({*lengths.tolist()}) >= 3 and len({*y.flatten().tolist()}) >= 3


class _Questions:
    """Questions about a loss, answered by calling it with outputs of our own."""

    def __init__(self, loss: OutputLoss, output: Tensor, y: Any, scale: float, operation: str | None) -> None:
        self.ends_linear = operation in ("Addmm", "Mm", "Linear", "Add")  # then classes come last
        self.loss, self.output, self.y, self.scale = loss, output.detach(), y, scale
        self.rng = torch.Generator().manual_seed(0)

    def number(self, name: str, question: Callable[[], float]) -> dict[str, float]:
        try:
            value = question()
        except _REFUSALS:
            return {}
        return {name: value} if math.isfinite(value) else {}

    def draw(self) -> Tensor:
        made = torch.randn(self.output.shape, generator=self.rng, dtype=torch.float64)
        return made.to(self.output)

    def value(self, z: Tensor, y: Any = None) -> float:
        return float(self.loss(z, self.y if y is None else y).detach().double().mean())

    def bounds(self, own: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The loss of the best constant answer, and the lowest loss."""
        maps = self.ranges(own)
        return self.number("trivial", lambda: min(self.lowest(one, constant=True)[0] for one in maps)) | self.number(
            "floor", lambda: min(self.lowest(one, constant=False)[0] for one in maps)
        )

    def ranges(self, own: Callable[[Tensor], Tensor]) -> list[Callable[[Tensor], Tensor]]:
        """Ranges of outputs to minimise over: any, if the loss is made for any; else the model's, or probabilities."""
        best, runs_away = self.lowest(_any, constant=False)
        if runs_away:  # the loss is not bounded below: it is made for outputs of a range, as the model has
            return [own]
        beyond = own is not _any and best < 0 <= self.lowest(own, constant=False)[0]  # as for log p of p > 1
        if best < math.inf and not beyond:
            return [_any, own]
        if beyond and own in [_RANGES[name] for name in ("Softmax", "LogSoftmax", "Sigmoid")]:
            return [own]
        return [own, *(one for one in (_RANGES["Sigmoid"], _RANGES["Softmax"]) if self.prefers_own_answers(one))]

    def prefers_own_answers(self, into: Callable[[Tensor], Tensor]) -> bool:
        """Whether one answer per sample is better than one for all, by a fifth of the possible gain."""
        (all_alike, _), (each, _) = (self.lowest(into, constant=constant) for constant in (True, False))
        start = self.value(into(torch.full_like(self.output, 0.5))) if each < math.inf else math.inf
        return each < all_alike < math.inf and all_alike - each >= 0.2 * (start - each)

    def lowest(self, into: Callable[[Tensor], Tensor], *, constant: bool) -> tuple[float, bool]:
        """The lowest loss over free outputs, one per sample or one for all (∞ if there is none), and whether it goes on
        falling as they grow.
        """
        shape = list(self.output.shape)
        if constant:
            shape = [1] * (len(shape) - 1) + shape[-1:] if len(shape) > 1 else [1]
            if self.output.dim() > 3:
                shape = [1, self.output.shape[1], *[1] * (self.output.dim() - 2)]
        u = (0.5 + 0.01 * torch.randn(shape, generator=self.rng)).to(self.output).requires_grad_()
        walk = torch.optim.Adam([u], lr=0.2 * self.scale)
        losses: list[float] = []
        for step in range(_STEPS):
            walk.param_groups[0]["lr"] = 0.2 * self.scale * (1 - step / _STEPS)
            try:
                value = self.loss(into(u).expand_as(self.output), self.y)
            except (RuntimeError, ValueError, IndexError):
                return math.inf, False  # the loss does not take these outputs
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
        """Whether the loss depends on the targets, but not on which sample each belongs to."""
        if not isinstance(self.y, Tensor) or self.y.dim() == 0 or len(self.y) < 4:
            return None
        if bool((self.y == self.y[:1]).all()) or len(self.y) != len(self.output):
            return None
        near = _scale(
            torch.zeros(1), self.y
        )  # among the targets: far from them a distance is a sum, which has no pairs
        z = self.draw().abs().clamp(0.05, 0.95) * near
        here = self.value(z)
        orders = [torch.randperm(len(self.y), generator=self.rng) for _ in range(3)]
        same = all(abs(self.value(z, self.y[order]) - here) <= 1e-5 * abs(here) for order in orders)
        return same and abs(self.value(z, self.y[:1].expand_as(self.y)) - here) > 1e-5 * abs(here)

    def is_over_the_batch(self, kind: str) -> bool | None:
        """Whether adding to one class for all samples changes nothing: a softmax over the batch in place of classes."""
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
        """Whether a loss of classes falls linearly, without bound, as the right output grows."""
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
        """Whether the best answer for 30 % ones is neither 0.3 nor its logit, and is the same for 40 %."""
        if kind == "classes":
            return self._is_improper_for_classes(into)
        if kind not in ("binary", "labels") or not isinstance(self.y, Tensor) or self.y.shape != self.output.shape:
            return None
        return _is_median(*(self._best_for_ones(into, tenths) for tenths in (3, 4)))

    def _best_for_ones(self, into: Callable[[Tensor], Tensor], tenths: int) -> float | None:
        """The answer with the lowest loss where so many targets in ten are 1."""
        many = max(10, len(self.y) // 10 * 10)
        y = (torch.arange(many) % 10 < tenths).to(self.y).reshape(-1, *[1] * (self.y.dim() - 1))
        y = y.expand(-1, *self.y.shape[1:]).contiguous()
        grid = torch.linspace(-6, 6, 241, dtype=torch.float64)
        answers = [float(into(t[None, None])) if into is not _RANGES["Softmax"] else float(t.sigmoid()) for t in grid]
        losses = [float(self.loss(torch.full_like(y, answer), y).detach()) for answer in answers]
        return answers[losses.index(min(losses))] if all(map(math.isfinite, losses)) else None

    def _is_improper_for_classes(self, into: Callable[[Tensor], Tensor]) -> bool | None:
        """The same with so many samples of the first class, and the others of the second."""
        if self.output.dim() != 2 or self.output.shape[1] < 2 or not isinstance(self.y, Tensor) or self.y.dim() != 1:
            return None
        asked = [_is_median(*(self._best_share(n, into, shares=shares) for n in (3, 4))) for shares in (True, False)]
        known = [one for one in asked if one is not None]
        return all(known) if known else None

    def _best_share(self, tenths: int, into: Callable[[Tensor], Tensor], *, shares: bool) -> float | None:
        """The answer for the first class with the lowest loss, as a share or, of any outputs, as a logit."""
        if not shares and into is not _any:
            return None
        y = (torch.arange(20) % 10 >= tenths).to(self.y)
        grid = torch.linspace(0, 1, 101).tolist() if shares else torch.linspace(-6, 6, 241).tolist()
        outputs = [_two_classes(self.output, answer, shares=shares) for answer in grid]
        if into is _RANGES["LogSoftmax"]:
            outputs = [z.log() for z in outputs]
        losses = [self.value(z, y) for z in outputs]
        return float(grid[losses.index(min(losses))]) if all(map(math.isfinite, losses)) else None


def _two_classes(output: Tensor, answer: float, *, shares: bool) -> Tensor:
    """Twenty outputs with one answer for the first two classes, and nearly nothing for the others."""
    z = torch.full((20, output.shape[1]), 1e-6 if shares else -20.0).to(output)
    z[:, 0], z[:, 1] = (answer, 1 - answer) if shares else (answer, 0.0)
    return z.clamp_min(1e-6) if shares else z


def _is_median(of_three: float | None, of_four: float | None) -> bool | None:
    """Whether an answer is neither three in ten nor its logit, up to what label smoothing changes, and the same for
    four in ten.
    """
    if of_three is None:
        return None
    return min(abs(of_three - 0.3), abs(of_three - math.log(0.3 / 0.7)) / 2) > 0.1 and of_three == of_four


# What the model returned, and its loss


class ReturnedLoss:
    """The loss of (what the model returned, y); where it takes no tuple or mapping, of the first tensor in it."""

    def __init__(self, loss: OutputLoss, returned: Any, y: Any) -> None:
        self._loss, self._returned, self._y = _copied_loss(loss), returned, y
        self._whole = isinstance(returned, Tensor) or self._takes(returned, y)

    def _takes(self, returned: Any, y: Any) -> bool:
        try:
            self._loss(returned, y)
        except SondeError:
            raise
        except Exception as error:
            return self._takes_first(returned, y, error)
        return True

    def _takes_first(self, returned: Any, y: Any, error: Exception) -> bool:
        first = first_float(returned)
        try:
            if first is not None:
                self._loss(first, y)
                return False
        except Exception:
            pass
        kind, why = type(returned).__name__, f"{type(error).__name__}: {error}".splitlines()[0]
        raise SondeError(
            f"the loss takes neither the {kind} that the model returns nor the first tensor in it ({why}): "
            "give loss= a function of (output, y)"
        ) from error

    def __call__(self, returned: Any, y: Any) -> Tensor:
        return self._loss(returned if self._whole else first_float(returned), y)

    def of_returned(self, returned: Any, y: Any) -> Tensor:
        """The loss of what was returned, as far as its output goes: further terms, as of codes, stay as they were."""
        z = first_float(returned)
        return self(returned, y) if z is None or not self._splits else self.of_output(z, y)

    @functools.cached_property
    def _splits(self) -> bool:
        z = first_float(self._returned)
        return self._whole and not isinstance(self._returned, Tensor) and z is not None and self._takes_output(z)

    def _takes_output(self, z: Tensor) -> bool:
        return self.depends_on_output(z, self._y) and self.depends_on_targets(z, self._y)

    def of_output(self, z: Tensor, y: Any) -> Tensor:
        """The loss with this tensor as the model's output, and everything else that it returned as it was."""
        return self._loss(_with(self._returned, z) if self._whole else z, y)

    def depends_on_targets(self, output: Tensor, y: Any) -> bool:
        """Whether the loss changes with the targets; one that the model has computed itself does not."""
        if not isinstance(y, Tensor) or y.dim() == 0:
            return True
        other = y[:1].expand_as(y).contiguous()
        if torch.equal(other, y):
            other = (y == 0).to(y.dtype)
        try:
            with torch.no_grad():
                return not torch.equal(self.of_output(output.detach(), y), self.of_output(output.detach(), other))
        except _REFUSALS:
            return True

    def depends_on_output(self, output: Tensor, y: Any) -> bool:
        """Whether the loss changes with the output; a loss that the model has computed itself does not."""
        if isinstance(self._returned, Tensor):
            return True
        z, rng = output.detach(), torch.Generator().manual_seed(0)
        moved = z + torch.randn(z.shape, generator=rng).to(z)
        try:
            with torch.no_grad():
                return not torch.equal(self.of_output(z, y), self.of_output(moved, y))
        except _REFUSALS:  # of outputs beyond a range, for one: then it depends on them
            return True


def own_loss(returned: Any, y: Any) -> Tensor:
    """The loss that a model computes itself: `loss` of a mapping, or a scalar beside the output of a tuple."""
    if isinstance(returned, Mapping):
        found = [returned.get("loss")]
    else:
        found = [tensor for _, tensor in tensors(returned) if tensor.dim() == 0]
    loss = next((one for one in found if isinstance(one, Tensor) and one.is_floating_point()), None)
    if loss is None:
        raise SondeError("the model returns no loss for this batch: give loss=, or a batch with targets in it")
    return loss


class _PlacesAsSamples(nn.Module):
    """A loss that takes every place of a sequence as a sample: outputs N·T × C and targets N·T."""

    def __init__(self, loss: OutputLoss) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        return self._loss(output.reshape(-1, output.shape[-1]), y.reshape(-1))


def as_in_loop(loss: OutputLoss, facts: Mapping[str, Any]) -> OutputLoss:
    """The loss for outputs N × T × C, if the loop flattened them to N·T × C before it called the loss."""
    of_model, of_loss = facts.get("output_shape") or [], facts.get("loss_shape") or []
    flattened = len(of_model) > 2 and of_loss == [math.prod(of_model[:-1]), of_model[-1]]
    targets = [one["shape"] for one in facts.get("targets") or []]
    return _PlacesAsSamples(loss) if flattened and targets == [of_loss[:1]] else loss


def _copied_loss(loss: OutputLoss) -> OutputLoss:
    """A copy of a loss that is a module, whose own parameters and buffers experiments would change."""
    try:
        return copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
    except Exception:
        return loss


def _with(returned: Any, z: Tensor) -> Any:
    """What the model returned, with another tensor in place of its output."""
    return _replaced(returned, first_float(returned), z)


def _replaced(value: Any, old: Tensor | None, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for key, inner in value.items():
            if any(tensor is old for _, tensor in tensors(inner)):
                made[key] = _replaced(inner, old, new)
        return made
    if isinstance(value, list | tuple):
        inner = [_replaced(one, old, new) for one in value]
        make: Callable[..., Any] = type(value)
        return make(*inner) if hasattr(value, "_fields") else make(inner)
    return value
