"""Short experiments on copies of a model, for what recorded rows cannot show.  The model itself is not changed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.diagnosis.run_evidence import loss_score
from sonde.metrics.reductions import pearson
from sonde.observe import finite_or_none, operations
from sonde.observe.experiments.copies import (
    OptimiserRecipes,
    OutputLoss,
    attempt,
    cast_tensors,
    copied,
    describe_targets,
    fit,
    generators_kept,
    reset,
    run_model,
    sample_count,
    set_modes,
    standardised,
    take_samples,
)
from sonde.observe.experiments.losses import ReturnedLoss, compares_samples, probe_loss
from sonde.observe.facts import first_float, tensor_statistics, tensors
from sonde.observe.operations import gate_saturation, traced

_SAMPLES = 128  # of a batch that are used
_LEARNED = 0.5  # of the way from the trivial to the lowest loss: no fits are needed where a run came as far


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
) -> dict[str, Any]:
    """Train and trace copies of a model on one batch; what they show of the model, its loss and the batch, for JSON.

    `start` are the weights of the first step, `without_gradient` names of parameters, `last_loss` is the run's.
    Without `rates`, the optimiser is a stand-in, and no other learning rates are tried.  Random generators are left
    as they were.
    """
    with generators_kept(0):
        experiments = _Experiments(model, loss, x, y, facts, start, optimisers, rates, last_loss)
        found: dict[str, Any] = _for_json(experiments.all(without_gradient))
        return found


def _for_json(value: Any) -> Any:
    """None for what is not finite."""
    if isinstance(value, dict):
        return {key: _for_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_for_json(inner) for inner in value]
    return finite_or_none(value) if isinstance(value, float) else value


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

    def __post_init__(self) -> None:
        self.x, self.y = cast_tensors(self.x, None), cast_tensors(self.y, None)
        self.samples = sample_count(self.x, self.y)
        begin = self.twin()
        if self.samples is not None and self.samples > _SAMPLES:
            self.cut(begin, self.samples)
        with torch.enable_grad():
            self.loss = ReturnedLoss(self.given_loss, run_model(begin, self.x), self.y)
        torch.manual_seed(0)

    def cut(self, model: nn.Module, many: int) -> None:
        """Use some of the samples only, if the model takes such a batch, too."""
        places = _sample_places(many)
        x, y = take_samples(self.x, places, many), take_samples(self.y, places, many)
        try:
            run_model(model, x)
        except Exception:
            return
        self.x, self.y, self.samples = x, y, _SAMPLES

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
        found: dict[str, Any] = {"samples": self.samples, "start_kept": self.start is not None}
        found["inputs"] = [one.read() for one in tensor_statistics(self.x)]
        now, begin = self.twin(begin=False), self.twin()
        with torch.enable_grad():
            returned = run_model(begin, self.x)
        output = first_float(returned)
        alone = output is not None and self.loss.depends_on_output(output, self.y)
        found["targets"] = describe_targets(self.y, output)
        if (
            output is not None
            and found["targets"]["kind"] == "classes"
            and alone
            and compares_samples(self.loss.of_output, output, self.y)
        ):
            found["targets"]["kind"] = "none"  # they name samples that belong together, not outputs
        operation = None if output is None else operations.last_operation(output)
        if output is not None:
            found["output"] = {
                "shape": list(output.shape),
                "operation": operation,
                "operations_after": self.operations_after(output, returned),
            }
            if operation == "Softmax" and output.dim() == 2 and len(output) > 1:
                over, along = (bool((output.sum(axis) - 1).abs().max() < 1e-3) for axis in (0, 1))
                found["output"]["sums_over_batch"] = over and not along
            if alone:
                kind = found["targets"]["kind"]
                found["loss"] = probe_loss(self.loss.of_output, output, self.y, operation, kind)
        found["loss_now"] = self.value(now)
        found["loss_start"] = self.value(begin)
        found["traced_start"] = traced(begin, lambda: self.value(begin))
        found["traced_now"] = traced(now, lambda: self.value(now))
        found["unfelt"] = [name for name in without_gradient if self.matters(name)]
        found["neighbours"] = self.nearest_inputs(found["targets"]["kind"])
        found["relation"] = attempt(self.relation) if found["targets"]["kind"] == "real" else None
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            found["over_time"] = attempt(self.over_time)
            found["gates"] = gate_saturation(self.twin(), lambda twin: run_model(twin, self.x))
        found["score"] = loss_score(found, found["loss_now"])
        at_end = loss_score(found, self.last_loss)
        if found["score"] is None or min(found["score"], _LEARNED if at_end is None else at_end) < _LEARNED:
            found["fits"] = self.fits(found)
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
            value = float(self.loss(run_model(model, self.x), self.y).double().mean())
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
        """Train copies for fifty steps on the batch: at several learning rates, and with one change at a time."""
        y = self.y

        def at(
            rate: float, x: Any = self.x, y: Any = y, change: Callable[[nn.Module], Any] | None = None
        ) -> dict[str, Any]:
            def question() -> dict[str, Any]:
                model = self.twin()
                torch.manual_seed(0)
                if change is not None:
                    change(model)
                return fit(model, self.optimisers, self.loss, x, y, rate=rate)

            return attempt(question)

        made = {"1": at(1.0)}
        if not self.rates and self.reached(found, made["1"]) >= _LEARNED:
            return made
        if self.rates:
            made |= self.other_rates(found, made["1"], at)
        made["fresh"] = at(1.0, change=reset)
        if any(t.is_floating_point() for _, t in tensors(self.x)):
            made["standardised"] = at(1.0, x=standardised(self.x))
        if found["targets"]["kind"] == "real" and isinstance(y, Tensor) and y.dim() > 0 and y.is_floating_point():
            spread = y.std(correction=0)
            made["scaled targets"] = at(1.0, y=(y - y.mean()) / torch.where(spread > 0, spread, 1.0))
        return made

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

    def some_pairs(self, axes: Sequence[int] | None) -> tuple[Tensor | None, Any]:
        """The first floating-point input with so many axes (None: two or more), and the targets, of 128 samples."""
        known = (t for _, t in tensors(self.x) if t.is_floating_point() and t.layout == torch.strided)
        x = next((t for t in known if (t.dim() > 1 if axes is None else t.dim() in axes)), None)
        if x is None or not isinstance(self.y, Tensor) or len(x) <= _SAMPLES:
            return x, self.y
        places = _sample_places(len(x))
        return x[places], take_samples(self.y, places, len(x))

    def nearest_inputs(self, kind: str) -> dict[str, float] | None:
        """How often the nearest other input has the same class, and how often any other one has.

        Of vectors and images only: two sequences may mean the same without being near.
        """
        x, y = self.some_pairs((2, 4))
        if kind == "one-hot" and isinstance(y, Tensor):
            y = y.argmax(-1)
        if x is None or not isinstance(y, Tensor) or kind not in ("classes", "one-hot", "binary"):
            return None
        y = y.flatten()
        if len(y) != len(x) or len(y) < 24:
            return None
        flat = standardised(x.flatten(1)).double()
        apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
        same = (y[:, None] == y[None]).double().fill_diagonal_(0.0)
        return {
            "agree": float((y[apart.argmin(1)] == y).double().mean()),
            "by_chance": float(same.sum() / (len(y) * (len(y) - 1))),
            "n": len(y),
        }

    def relation(self) -> dict[str, float]:
        """How well other samples predict a target: the correlation with the target of the nearest input, and with a
        ridge regression on all the others.
        """
        x, y = self.some_pairs(None)
        if x is None or len(y) != len(x) or y.numel() != len(x) or len(x) < 24:
            return {}
        flat, y = standardised(x.flatten(1)).double(), y.flatten().double()
        apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
        inner = flat @ flat.T + 1.0
        hat = torch.linalg.solve(inner + 0.1 * inner.diagonal().mean() * torch.eye(len(y)).to(inner), inner)
        left_out = (hat @ y - hat.diagonal() * y) / (1 - hat.diagonal())
        return {"nearest": _correlation(y[apart.argmin(1)], y), "line": _correlation(left_out, y), "n": len(y)}

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


def _sample_places(many: int) -> Tensor:
    """Places of some samples: the same draw for every batch of this size."""
    return torch.randperm(many, generator=torch.Generator().manual_seed(0))[:_SAMPLES].sort().values


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; 0 where one side has no spread."""
    (found,) = pearson(a[None], b)
    return 0.0 if math.isnan(found) else found
