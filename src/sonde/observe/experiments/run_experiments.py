"""All experiments on one batch: plain numbers, from which a diagnosis takes what it needs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.analysis.diagnosis.run_evidence import loss_score
from sonde.observe import autograd_graph
from sonde.observe import facts as looks
from sonde.observe.experiments.copies import Loss, cast, copied, generators_kept, reset, run, set_modes
from sonde.observe.experiments.gates import gates
from sonde.observe.experiments.loss_alone import compares_samples, probe_loss
from sonde.observe.experiments.overfit import Optimisers, attempt, fit
from sonde.observe.experiments.returned import ReturnedLoss
from sonde.observe.experiments.targets import describe_targets, samples, standardised, taken
from sonde.observe.experiments.traced_pass import trace

SAMPLES = 128  # of a batch that are used
LEARNED = 0.5  # of the way from the trivial to the lowest loss: no fits are needed where a run came as far


def settle(
    model: nn.Module,
    loss: Loss,
    x: Any,
    y: Any,
    *,
    facts: Mapping[str, Any],
    start: Mapping[str, Tensor] | None,
    optimisers: Optimisers,
    unfelt: Sequence[str] = (),
    rates: bool = True,
    last_loss: float | None = None,
) -> dict[str, Any]:
    """What copies tell of a model, its loss and a batch; `unfelt` names parameters without gradient.

    Without `rates`, the optimiser is a stand-in of which other rates say nothing.
    """
    with generators_kept(0):
        found: dict[str, Any] = _plain(
            _Bench(model, loss, x, y, facts, start, optimisers, rates, last_loss).all(unfelt)
        )
        return found


def _plain(value: Any) -> Any:
    """What JSON can hold: None for what is not finite."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Bench:
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        x: Any,
        y: Any,
        facts: Mapping[str, Any],
        start: Mapping[str, Tensor] | None,
        optimisers: Optimisers,
        rates: bool,
        last_loss: float | None,
    ) -> None:
        self.last_loss = last_loss  # of the run
        self.rates = rates
        self.model = model
        self.facts, self.start, self.optimisers = facts, start, optimisers
        self.x, self.y = cast(x, None), cast(y, None)
        self.samples = samples(self.x, self.y)
        begin = self.twin()
        if self.samples is not None and self.samples > SAMPLES:
            self.cut(begin, self.samples)
        with torch.enable_grad():
            self.loss = ReturnedLoss(loss, run(begin, self.x), self.y)
        torch.manual_seed(0)

    def cut(self, model: nn.Module, many: int) -> None:
        """Go on with some samples, if that is a batch for the model, too."""
        places = _some(many)
        x, y = taken(self.x, places, many), taken(self.y, places, many)
        try:
            run(model, x)
        except Exception:
            return
        self.x, self.y, self.samples = x, y, SAMPLES

    def twin(self, *, begin: bool = True) -> nn.Module:
        """A copy with the weights of the first step (where they were kept: else fresh ones), or with those of now."""
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

    def all(self, unfelt: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"samples": self.samples, "start_kept": self.start is not None}
        found["inputs"] = [glance.read() for glance in looks.glances(self.x)]
        now, begin = self.twin(begin=False), self.twin()
        with torch.enable_grad():
            returned = run(begin, self.x)
        output = looks.first_float(returned)
        alone = output is not None and self.loss.depends_on_output(output, self.y)
        found["targets"] = describe_targets(self.y, output)
        if (
            output is not None
            and found["targets"]["kind"] == "classes"
            and alone
            and compares_samples(self.loss.of_output, output, self.y)
        ):
            found["targets"]["kind"] = "none"  # they name samples that belong together, not outputs
        operation = None if output is None else autograd_graph.last_operation(output)
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
        found["traced_start"] = trace(begin, lambda: self.value(begin))
        found["traced_now"] = trace(now, lambda: self.value(now))
        found["unfelt"] = [name for name in unfelt if self.matters(name)]
        found["neighbours"] = self.neighbours(found["targets"]["kind"])
        found["relation"] = attempt(self.relation) if found["targets"]["kind"] == "real" else None
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            found["over_time"] = attempt(self.over_time)
            found["gates"] = gates(self.twin(), lambda twin: run(twin, self.x))
        found["score"] = loss_score(found, found["loss_now"])
        at_end = loss_score(found, self.last_loss)
        if found["score"] is None or min(found["score"], LEARNED if at_end is None else at_end) < LEARNED:
            found["fits"] = self.fits(found)
        return found

    def operations_after(self, output: Tensor, returned: Any) -> list[str]:
        """What the loss makes of the output."""
        made = autograd_graph.sequence(output)
        if made is None:
            return []
        with torch.enable_grad():
            return autograd_graph.operations_since(self.loss(returned, self.y), made)

    def value(self, model: nn.Module) -> float | None:
        """The loss on the batch, in the modes of training."""
        torch.manual_seed(0)
        kept = {name: x.detach().clone() for name, x in model.named_buffers()}
        with torch.no_grad():
            value = float(self.loss(run(model, self.x), self.y).double().mean())
            for name, buffer in model.named_buffers():
                buffer.copy_(kept[name])
        return value if math.isfinite(value) else None

    def matters(self, name: str) -> bool:
        """Whether the loss changes with a parameter that gets no gradient: then its path is cut."""
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
        """Fifty steps on the batch: at three rates, and with one thing changed at a time."""
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
        if not self.rates and self.reached(found, made["1"]) >= LEARNED:
            return made
        if self.rates:
            made |= self.other_rates(found, made["1"], at)
        made["fresh"] = at(1.0, change=reset)
        if any(t.is_floating_point() for _, t in looks.tensors(self.x)):
            made["standardised"] = at(1.0, x=standardised(self.x))
        if found["targets"]["kind"] == "real" and isinstance(y, Tensor) and y.dim() > 0 and y.is_floating_point():
            spread = y.std(correction=0)
            made["scaled targets"] = at(1.0, y=(y - y.mean()) / torch.where(spread > 0, spread, 1.0))
        return made

    def other_rates(
        self, found: Mapping[str, Any], own: Mapping[str, Any], at: Callable[[float], dict[str, Any]]
    ) -> dict[str, Any]:
        """A tenth and ten times the rate; and as much again where that leaves it open."""
        made = {"0.1": at(0.1), "10": at(10.0)}
        middle, low, high = (self.reached(found, known) for known in (own, made["0.1"], made["10"]))
        if max(low, middle) < LEARNED:
            made["0.01"] = at(0.01)
        if LEARNED > high > max(low, middle):
            made["100"] = at(100.0)
        return made

    def reached(self, found: Mapping[str, Any], known: Mapping[str, Any]) -> float:
        reached = loss_score(found, known.get("last"))
        return -math.inf if reached is None else reached

    def some_pairs(self, axes: Sequence[int] | None) -> tuple[Tensor | None, Any]:
        """The first input of numbers with so many axes (None: two or more), and the targets; at most 128 of each."""
        known = (t for _, t in looks.tensors(self.x) if t.is_floating_point() and t.layout == torch.strided)
        x = next((t for t in known if (t.dim() > 1 if axes is None else t.dim() in axes)), None)
        if x is None or not isinstance(self.y, Tensor) or len(x) <= SAMPLES:
            return x, self.y
        places = _some(len(x))
        return x[places], taken(self.y, places, len(x))

    def neighbours(self, kind: str) -> dict[str, float] | None:
        """How often the nearest other input has the same class, and how often any other one has.

        Asked of vectors and images: two sequences may mean the same without being near.
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
        """What other samples tell of a target: the correlation with that of the nearest input, and with the value
        of a line (ridge regression) through all the others.
        """
        x, y = self.some_pairs(None)
        if x is None or len(y) != len(x) or y.numel() != len(x) or len(x) < 24:
            return {}
        flat, y = standardised(x.flatten(1)).double(), y.flatten().double()
        apart = torch.cdist(flat, flat).fill_diagonal_(math.inf)
        inner = flat @ flat.T + 1.0
        hat = torch.linalg.solve(inner + 0.1 * inner.diagonal().mean() * torch.eye(len(y)).to(inner), inner)
        left_out = (hat @ y - hat.diagonal() * y) / (1 - hat.diagonal())
        return {
            "nearest": _correlation(y[apart.argmin(1)], y),
            "line": _correlation(left_out, y),
            "n": len(y),
        }

    def over_time(self) -> dict[str, float]:
        """‖∂loss/∂x_t‖ at the first and the last place of the sequence that a recurrent module reads."""
        model, seen = self.twin(), []

        def hear(module: nn.RNNBase, args: Any) -> Any:
            if not isinstance(args[0], Tensor) or args[0].dim() != 3:
                return None
            x = args[0].detach().requires_grad_()
            seen.append((x, 1 if module.batch_first else 0))
            return (x, *args[1:])

        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.register_forward_pre_hook(hear)
                break
        with torch.enable_grad():
            value = self.loss(run(model, self.x), self.y)
        if not seen or not value.requires_grad:
            return {}
        (grad,) = torch.autograd.grad(value.mean(), seen[0][0], allow_unused=True)
        if grad is None or not bool(grad.isfinite().all()):
            return {}
        ends = grad.movedim(seen[0][1], 0)
        return {"first": float(ends[0].norm()), "last": float(ends[-1].norm()), "length": len(ends)}


def _some(many: int) -> Tensor:
    """Places of samples, drawn once and for all."""
    return torch.randperm(many, generator=torch.Generator().manual_seed(0))[:SAMPLES].sort().values


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else 0.0
