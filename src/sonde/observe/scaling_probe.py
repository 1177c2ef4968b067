"""What a study of sizes measures beside a watch: inputs of modules, changes of outputs, attention logits, effects."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sonde.metrics.rows import WATCHED
from sonde.observe.facts import first_float

_SAMPLES = 8  # whose attention logits are read
_MASKED = -1e4  # a logit below this is a mask


class Probe:
    """What a watch does not measure: inputs of modules, changes of outputs, and effects of parameters."""

    def __init__(self, model: nn.Module, groups: Mapping[str, Any], run: str) -> None:
        self._model, self._run = model, run
        self._groups = {label: group["members"] for label, group in groups.items()}
        self._first: dict[str, Tensor] = {}
        self._values: list[tuple[int, str, str, Tensor]] = []  # step, metric, module, value
        self._calls: dict[str, int] = {}
        self._running: list[str] = []
        self.out: Tensor | None = None  # of the pass under way

    @contextmanager
    def listening(self, step: int) -> Iterator[None]:
        """Hooks on all modules, for one pass."""
        self._calls = {}
        hooks = []
        for name, module in self._model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._before(name or "(model)", step)))
            hooks.append(module.register_forward_hook(self._after(name or "(model)", step), always_call=True))
        try:
            with Logits(lambda logits: self._note_logits(step, logits)):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, name: str, step: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            number = self._calls[name] = self._calls.get(name, 0) + 1
            self._running.append(name if number == 1 else f"{name}#{number}")
            given = first_float(args)
            is_measured = module._parameters or not module._modules
            if step == 0 and given is not None and is_measured:
                self._add(step, "in_rms", self._running[-1], _rms(given))

        return hook

    def _after(self, name: str, step: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found = first_float(output)
            if found is not None:
                self._change(step, self._running[-1], found.detach())
            self._running.pop()

        return hook

    def _note_logits(self, step: int, logits: Tensor) -> None:
        """Attention logits count as a module of their own."""
        within = self._running[-1] if self._running else "(model)"
        number = self._calls[f"{within} logits"] = self._calls.get(f"{within} logits", 0) + 1
        name = f"{within} (logits)" if number == 1 else f"{within} (logits)#{number}"
        self._add(step, "out_rms", name, _rms(logits))
        self._change(step, name, logits)

    def _change(self, step: int, name: str, value: Tensor) -> None:
        if step == 0:
            self._first[name] = value.clone()
        elif name in self._first and self._first[name].shape == value.shape:
            self._add(step, "out_change", name, _rms(value - self._first[name]))

    @contextmanager
    def around_step(self, step: int) -> Iterator[None]:
        """Measure how far the optimiser's step of each group moves the output along the gradient, to first order.

        The step changes the loss by Σ ∂loss/∂W · ΔW = ⟨∂loss/∂out, Δout⟩; divided by ‖∂loss/∂out‖ it is a distance.
        """
        error = self.out.grad if self.out is not None else None
        scale = torch.ones(()) if error is None else torch.linalg.vector_norm(error.double())
        known = dict(self._model.named_parameters())
        before = {name: p.detach().clone() for name, p in known.items()}
        yield
        gains = {
            name: torch.zeros(()) if p.grad is None else (p.grad.double() * (p.detach() - before[name])).abs().sum()
            for name, p in known.items()
        }
        for label, members in self._groups.items():
            self._add(step, "effect", label, torch.stack([gains[name].cpu() for name in members]).sum() / scale.cpu())

    def _add(self, step: int, metric: str, name: str, value: Tensor) -> None:
        self._values.append((step, metric, name, value.detach().double().reshape(())))

    def rows(self) -> pl.DataFrame:
        """Everything measured, as rows of a watched run."""
        numbers = torch.stack([value for *_, value in self._values]).cpu().tolist()
        lines = []
        for (step, metric, name, _), value in zip(self._values, numbers, strict=True):
            finite = math.isfinite(value)
            reason = None if finite else "not finite"
            known = {"run": self._run, "step": step, "metric": metric, "value": value if finite else math.nan}
            lines.append({**known, "defined": finite, "reason": reason, "samples": 1, "module": name})
        return pl.DataFrame([{**dict.fromkeys(WATCHED), **line} for line in lines], schema=WATCHED)


class Logits(TorchFunctionMode):
    """Reads the logits of attention: what a softmax over pairs of tokens is given, and q·k of the fused function."""

    _SOFTMAX = (torch.softmax, functional.softmax, Tensor.softmax)

    def __init__(self, note: Callable[[Tensor], None], *, cut: bool = False) -> None:
        super().__init__()
        self._note, self._cut = note, cut  # `cut`: no gradient goes back through them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._SOFTMAX and isinstance(args[0], Tensor) and args[0].dim() >= 3:
            logits = args[0].detach()
            self._note(torch.where(logits > _MASKED, logits, 0.0)[:_SAMPLES])
            args = (logits, *args[1:]) if self._cut else args
        elif getattr(func, "__name__", "") == "scaled_dot_product_attention":
            q, k = args[0].detach(), args[1].detach()
            scale = kwargs.get("scale")
            if k.shape[:-2] == q.shape[:-2]:
                logits = q[:_SAMPLES] @ k[:_SAMPLES].transpose(-1, -2)
                self._note(logits * (q.shape[-1] ** -0.5 if scale is None else scale))
            args = (q, k, *args[2:]) if self._cut else args
        return func(*args, **kwargs)


def _rms(x: Tensor) -> Tensor:
    return x.detach().double().square().mean().sqrt()
