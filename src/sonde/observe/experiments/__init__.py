"""Short experiments on copies of a model, for what recorded rows cannot show.  The model itself is not changed."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.diagnosis.constant_answer import loss_score
from sonde.observe import finite_or_none, operations
from sonde.observe.experiments import pairs
from sonde.observe.experiments.copies import (
    OptimiserRecipes,
    OutputLoss,
    attempt,
    cast_tensors,
    copied,
    describe_targets,
    fit,
    generators_kept,
    missing_classes,
    name_places,
    reset,
    run_model,
    sample_count,
    set_modes,
    standardised,
    take_samples,
)
from sonde.observe.experiments.losses import ReturnedLoss, compares_samples, loss_bounds, padding, probe_loss
from sonde.observe.experiments.pairs import SAMPLES, sample_places
from sonde.observe.facts import first_float, tensor_statistics, tensors
from sonde.observe.operations import gate_saturation, traced

_PATIENCE = 2.0  # seconds without a word
_LEARNED = 0.5  # of the way from the trivial to the lowest loss
_DONE = 0.9  # the same: no fits are needed where a run came as far


def run_experiments(
    model: nn.Module,
    loss: OutputLoss,
    x: Any,
    y: Any,
    *,
    facts: Mapping[str, Any],
    start: Mapping[str, Tensor] | None,
    optimisers: OptimiserRecipes,
    without_gradient: Sequence[str] = (),
    rates: bool = True,
    last_loss: float | None = None,
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Train and trace copies of a model on one batch; what they show of the model, its loss and the batch, for JSON.

    `start` are the weights of the first step, `without_gradient` names of parameters, `last_loss` is the run's.
    Without `rates`, the optimiser is a stand-in, and no other learning rates are tried.  Experiments end after about
    `seconds` of processor time.  Random generators are left as they were.
    """
    with generators_kept(0):
        clock = _Clock(seconds)
        experiments = _Experiments(model, loss, x, y, facts, start, optimisers, rates, last_loss, clock)
        found: dict[str, Any] = _for_json(experiments.all(without_gradient))
        return found


def _for_json(value: Any) -> Any:
    """None for what is not finite."""
    if isinstance(value, dict):
        return {key: _for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(inner) for inner in value]
    return finite_or_none(value) if isinstance(value, float) else value


def _answer(question: Callable[[], Any]) -> Any:
    """The answer, or None where the model or its batch do not allow for the question."""
    try:
        return question()
    except Exception:
        return None


class _Clock:
    """The processor time that is left, and one line about what is done, on a terminal."""

    def __init__(self, seconds: float) -> None:
        self._begun, self._seconds = time.process_time(), seconds
        self._said = False

    @property
    def spent(self) -> float:
        return time.process_time() - self._begun

    @property
    def is_over(self) -> bool:
        return self.spent > self._seconds

    @property
    def share(self) -> float:
        """Seconds for one fit: a tenth, or half of what is left."""
        return max(0.0, min(self._seconds / 10, (self._seconds - self.spent) / 2))

    def tell(self, what: str) -> None:
        """What begins now, if there was something to wait for."""
        if self.spent > _PATIENCE and sys.stderr.isatty():
            self._said = True
            print(f"\rsonde: experiments, {self.spent:.0f} of {self._seconds:g} s: {what:<30}", end="", file=sys.stderr)

    def end(self) -> None:
        """Clear the line."""
        if self._said:
            print("\r" + " " * 78 + "\r", end="", file=sys.stderr)


@dataclass
class _Experiments:
    model: nn.Module
    given_loss: OutputLoss
    x: Any
    y: Any
    facts: Mapping[str, Any]
    start: Mapping[str, Tensor] | None  # weights of the first step
    optimisers: OptimiserRecipes
    rates: bool
    last_loss: float | None  # of the run
    clock: _Clock

    def __post_init__(self) -> None:
        self.x, self.y = cast_tensors(self.x, None), cast_tensors(self.y, None)
        self.samples = sample_count(self.x, self.y)
        begin = self.twin()
        self.all_targets = self.y
        if self.samples is not None and self.samples > SAMPLES:
            self.cut(begin, self.samples)
        with torch.enable_grad():
            self.loss = ReturnedLoss(self.given_loss, run_model(begin, self.x), self.y)
        torch.manual_seed(0)

    def cut(self, model: nn.Module, many: int) -> None:
        """Use some of the samples only, if the model takes such a batch, too."""
        places = sample_places(many)
        x, y = take_samples(self.x, places, many), take_samples(self.y, places, many)
        try:
            output = first_float(run_model(model, x))
        except Exception:
            return
        if isinstance(self.y, Tensor) and name_places(self.y[:SAMPLES], output):
            y = self.y[:SAMPLES]  # they name other places now
        self.x, self.y, self.samples = x, y, SAMPLES

    def twin(self, *, begin: bool = True) -> nn.Module:
        """A copy with the weights of the first step (fresh ones if these were not kept), or with the present ones."""
        made = copied(self.model)
        for parameter in made.parameters():
            parameter.grad = None
        if begin and self.start is not None:
            made.load_state_dict(self.start, strict=False)
        elif begin:
            torch.manual_seed(0)
            reset(made)
        set_modes(made, self.facts)
        return made

    def all(self, without_gradient: Sequence[str]) -> dict[str, Any]:
        """Everything, the quick questions first; what there is no time for is left out, and what fails says why."""
        found: dict[str, Any] = {"samples": self.samples, "start_kept": self.start is not None}
        found["inputs"] = _answer(self.of_inputs) or []
        now, begin = self.twin(begin=False), self.twin()
        with torch.enable_grad():
            returned = run_model(begin, self.x)
        found |= self.of_output(returned)
        kind = found["targets"]["kind"]
        found["loss_now"], found["loss_start"] = self.value(now), self.value(begin)
        found["loss_eval"] = _answer(lambda: self.value(self.twin(begin=False).eval()))
        questions: dict[str, Callable[[], Any]] = {
            "traced_start": lambda: traced(begin, lambda: self.value(begin)),
            "traced_now": lambda: traced(now, lambda: self.value(now)),
            "unfelt": lambda: [name for name in without_gradient if self.matters(name)],
            "nearest": lambda: pairs.nearest_inputs(self.x, self.y, kind),
            "relation": lambda: pairs.relation(self.x, self.y) if kind == "real" else None,
            "leak": lambda: pairs.leak(self.x, self.y, kind),
        }
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            questions["over_time"] = self.over_time
            questions["gates"] = lambda: gate_saturation(self.twin(), lambda twin: run_model(twin, self.x))
        for name, question in questions.items():
            self.clock.tell(name)
            found[name] = None if self.clock.is_over else _answer(question)
        found["score"] = loss_score(found, found["loss_now"])
        at_end = loss_score(found, self.last_loss)
        if found["score"] is None or min(found["score"], _DONE if at_end is None else at_end) < _DONE:
            found["fits"] = self.fits(found)
        self.clock.end()
        return found

    def of_inputs(self) -> list[dict[str, Any]]:
        """Statistics of the inputs, and whether each is the same for all samples."""
        found = [one.read() for one in tensor_statistics(self.x)]
        given = [x for _, x in tensors(self.x) if type(x) is Tensor]
        for one, x in zip(found, given, strict=False):
            dense = x.layout == torch.strided and x.dim() > 0 and len(x) == self.samples
            one["alike"] = dense and bool((x == x[:1]).all())
        return found

    def of_output(self, returned: Any) -> dict[str, Any]:
        """What the output and its loss are, and what the targets are to them."""
        output = first_float(returned)
        found: dict[str, Any] = {"targets": describe_targets(self.y, output)}
        if output is None:
            return found
        reads_output = self.loss.depends_on_output(output, self.y)
        alone = reads_output and self.loss.depends_on_targets(output, self.y)
        if reads_output and not alone and output.dim():
            found["targets"] = {"kind": "none"}  # the loss does not read them
        kind = found["targets"]["kind"]
        if kind == "classes" and alone and compares_samples(self.loss.of_output, output, self.y):
            found["targets"]["kind"] = kind = "none"  # they name samples that belong together, not outputs
        operation = operations.last_operation(output)
        found["output"] = {
            "shape": list(output.shape),
            "operation": operation,
            "operations_after": self.operations_after(output, returned),
            **({"sums_over_batch": _sums_over_batch(output)} if operation == "Softmax" else {}),
        }
        found["classes"] = missing_classes(self.all_targets, output) if kind == "classes" else None
        if alone:
            self.clock.tell("the loss alone")
            found["loss"] = probe_loss(self.loss.of_output, output, self.y, operation, kind)
            found["padding"] = _answer(lambda: padding(self.loss.of_output, output, self.y))
        return found

    def operations_after(self, output: Tensor, returned: Any) -> list[str]:
        """The operations between the output and the loss."""
        made = operations.sequence_number(output)
        if made is None:
            return []
        with torch.enable_grad():
            return operations.operations_since(self.loss(returned, self.y), made)

    def value(self, model: nn.Module) -> float | None:
        """The loss on the batch, in the modes of training."""
        torch.manual_seed(0)
        kept = {name: x.detach().clone() for name, x in model.named_buffers()}
        with torch.no_grad():
            value = float(self.loss.of_returned(run_model(model, self.x), self.y).double().mean())
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return finite_or_none(value)

    def matters(self, name: str) -> bool:
        """Whether the loss changes with a parameter that gets no gradient: then autograd misses the path to it."""
        model = self.twin()
        before = self.value(model)
        known = dict(model.named_parameters(remove_duplicate=False))
        if name not in known or before is None:
            return False
        with torch.no_grad():
            known[name].mul_(1.5).add_(0.1)
        after = self.value(model)
        return after is None or abs(after - before) > 1e-6 * max(1.0, abs(before))

    def fits(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Train copies for fifty steps on the batch: at several learning rates, and with one remedy at a time."""
        made = {"1": self.fit_with()}
        reached = self.reached(found, made["1"])
        if not self.rates and reached >= _LEARNED:
            return made
        if self.rates:
            made |= self.other_rates(found, made["1"], lambda rate: self.fit_with(rate=rate))
        made |= {name: self.fit_with(**change) for name, change in self.remedies(found, reached).items()}
        if found["targets"]["kind"] == "real" and self.y.dim() > 0 and self.y.is_floating_point():
            made["scaled targets"] = self.fit_with_scaled_targets(self.y, found["output"]["operation"])
        return made

    def remedies(self, found: Mapping[str, Any], reached: float) -> dict[str, dict[str, Any]]:
        """Changes that are tried one at a time, by name."""
        tried: tuple[tuple[str, bool, dict[str, Any]], ...] = (
            ("warm-up", self.rates and reached < _LEARNED and self.attends(found), {"warm_up": True}),
            ("fresh", True, {"change": reset}),
            ("standardised", any(t.is_floating_point() for _, t in tensors(self.x)), {"x": standardised(self.x)}),
            ("no decay", self.rates and self.decays, {"decay": 0.0}),
        )
        return {name: change for name, wanted, change in tried if wanted}

    @property
    def decays(self) -> bool:
        """Whether an optimiser has weight decay."""
        return any((group.get("weight_decay") or 0.0) > 0 for _, groups in self.optimisers for group in groups)

    def attends(self, found: Mapping[str, Any]) -> bool:
        """Whether the model has attention."""
        known = any(isinstance(module, nn.MultiheadAttention) for module in self.model.modules())
        return known or bool((found.get("traced_start") or {}).get("attention"))

    def fit_with_scaled_targets(self, y: Tensor, operation: str | None) -> dict[str, Any]:
        """A fit to standardised targets, with the losses between which its score is measured."""
        spread = y.std(correction=0)
        scaled = (y - y.mean()) / torch.where(spread > 0, spread, 1.0)
        output = first_float(run_model(self.twin(), self.x))
        known = None if output is None else _answer(lambda: loss_bounds(self.loss.of_output, output, scaled, operation))
        return {**self.fit_with(y=scaled), **(known or {})}

    def fit_with(
        self,
        *,
        rate: float = 1.0,
        x: Any = None,
        y: Any = None,
        change: Callable[[nn.Module], Any] | None = None,
        decay: float | None = None,
        warm_up: bool = False,
    ) -> dict[str, Any]:
        """One fit from the weights of the first step, with one change."""
        self.clock.tell("fifty steps on one batch")
        recipes = [
            (kind, [group if decay is None else {**group, "weight_decay": decay} for group in groups])
            for kind, groups in self.optimisers
        ]

        def question() -> dict[str, Any]:
            model = self.twin()
            torch.manual_seed(0)
            if change is not None:
                change(model)
            of, to = self.x if x is None else x, self.y if y is None else y
            more: dict[str, Any] = {"rate": rate, "warm_up": warm_up, "measure": self.loss.of_returned}
            return fit(model, recipes, self.loss, of, to, seconds=self.clock.share, **more)

        return {"failed": "no time was left"} if self.clock.is_over else attempt(question)

    def other_rates(
        self, found: Mapping[str, Any], own: Mapping[str, Any], at: Callable[[float], dict[str, Any]]
    ) -> dict[str, Any]:
        """Fits at a tenth and ten times the rate; at a hundredth and a hundred times where these do not learn."""
        made = {"0.1": at(0.1), "10": at(10.0)}
        middle, low, high = (self.reached(found, known) for known in (own, made["0.1"], made["10"]))
        if max(low, middle) < _LEARNED:
            made["0.01"] = at(0.01)
        if _LEARNED > high > max(low, middle):
            made["100"] = at(100.0)
        return made

    def reached(self, found: Mapping[str, Any], known: Mapping[str, Any]) -> float:
        reached = loss_score(found, known.get("last"))
        return -math.inf if reached is None else reached

    def over_time(self) -> dict[str, float]:
        """‖∂loss/∂x_t‖ at the first and the last place of the sequence that a recurrent module reads."""
        model, seen = self.twin(), []

        def record(module: nn.RNNBase, args: Any) -> Any:
            if not isinstance(args[0], Tensor) or args[0].dim() != 3:
                return None
            x = args[0].detach().requires_grad_()
            seen.append((x, 1 if module.batch_first else 0))
            return (x, *args[1:])

        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.register_forward_pre_hook(record)
                break
        with torch.enable_grad():
            value = self.loss(run_model(model, self.x), self.y)
        if not seen or not value.requires_grad:
            return {}
        (grad,) = torch.autograd.grad(value.mean(), seen[0][0], allow_unused=True)
        if grad is None or not bool(grad.isfinite().all()):
            return {}
        ends = grad.movedim(seen[0][1], 0)
        return {"first": float(ends[0].norm()), "last": float(ends[-1].norm()), "length": len(ends)}


def _sums_over_batch(output: Tensor) -> bool:
    """Whether probabilities of two axes sum to 1 over samples, and not over the outputs of a sample."""
    if output.dim() != 2 or len(output) < 2:
        return False
    over, along = (bool((output.sum(axis) - 1).abs().max() < 1e-3) for axis in (0, 1))
    return over and not along
