"""The playground's networks and rules in PyTorch, written without Sonde's own training: what the engine must equal.

N samples, d width, C outputs, L blocks.  Weights come as JSON under the names of the page's parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Weights = dict[str, Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "linear": lambda z: z,
}


class Through(torch.autograd.Function):
    """x Wᵀ going up; coming back, V stands in W's place for the input and W's own gradient is as ever."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, back = ctx.saved_tensors
        return dy @ back, dy.T @ x, None


class Reference:
    """One network of the page, from its settings and weights."""

    def __init__(self, settings: dict[str, Any], sizes: dict[str, Any], weights: Weights) -> None:
        self.s, self.sizes = settings, sizes
        self.w = {name: value.clone().requires_grad_() for name, value in weights.items()}
        self.back: Weights = {}  # what stands in a matrix's place on the way back
        self.moved: list[Tensor] = []  # x and h_0 … h_L where the rule learns, if those are not of the forward pass

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.w[f"{name}.weight"], self.w.get(f"{name}.bias")
        back = self.back.get(f"{name}.weight")
        z = x @ weight.T if back is None else Through.apply(x, weight, back)
        return z if bias is None else z + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def embed(self, x: Tensor) -> Tensor:
        return self.linear(x, "embed.linear") if "embed.linear.weight" in self.w else x

    def block(self, l: int, h: Tensor) -> Tensor:
        name, phi = f"blocks.{l}", ACTIVATIONS[self.s["activation"]]
        u = self.norm(h, f"{name}.ln") if self.s["norm"] == "pre" else h
        if self.s["block"] == "one":
            f = phi(self.linear(u, f"{name}.linear"))
        else:
            f = self.linear(phi(self.linear(u, f"{name}.w1")), f"{name}.w2")
        out = self.s["skip_scale"] * h + f if self.s["skip"] else f
        return self.norm(out, f"{name}.ln") if self.s["norm"] == "post" else out

    def readout(self, h: Tensor) -> Tensor:
        h = self.norm(h, "readout.out_ln") if self.s["out_ln"] else h
        return self.linear(h, "readout.out_head") if "readout.out_head.weight" in self.w else h

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        if self.sizes["classifies"]:
            return F.cross_entropy(z, y, reduction="none")
        return (z - y).square().mean(-1)

    def states(self, x: Tensor) -> list[Tensor]:
        states = [self.embed(x)]
        for l in range(self.s["depth"]):
            states.append(self.block(l, states[-1]))
        return states

    def gradients(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor, Tensor, list[Tensor]]:
        """States, output, mean loss and g_0 … g_L of each sample, by automatic differentiation."""
        states = [self.embed(x).detach().requires_grad_()]
        for l in range(self.s["depth"]):
            states.append(self.block(l, states[-1]))
        z = self.readout(states[-1])
        losses = self.losses(z, y)
        return states, z, losses.mean(), list(torch.autograd.grad(losses.sum(), states))

    def run(self, feedback: Weights, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Everything the page's engine answers for one batch."""
        self.back = {}
        states, z, loss, gradients = self.gradients(x, y)
        credits = self.credits(feedback, x, y, gradients)
        for value in self.w.values():
            value.grad = None
        self.learn(x, y, credits)
        return {
            "loss": loss,
            "output": z,
            "states": states,
            "gradients": gradients,
            "credits": credits,
            "parameters": {name: value.grad for name, value in self.w.items() if value.grad is not None},
        }

    def credits(self, feedback: Weights, x: Tensor, y: Tensor, gradients: list[Tensor]) -> list[Tensor]:
        depth = self.s["depth"]
        match self.s["rule"]:
            case "bp":
                return gradients
            case "fa":
                credits = [gradients[-1]]
                for l in reversed(range(depth)):
                    d = credits[0].shape[-1]
                    credits.insert(0, credits[0] @ feedback[str(l)].view(d, d).T)
                return credits
            case "dfa":
                error = self.output_error(x, y)
                return [error @ feedback[str(l)].view(-1, error.shape[-1]).T for l in range(depth + 1)]
            case "pc":
                return self.relaxed(x, y)
            case "pepita":
                error = self.output_error(x, y)
                x_err = x + error @ feedback["0"].view(x.shape[-1], -1).T
                self.moved = [x_err, *(h.detach() for h in self.states(x_err))]
                return [h.detach() - moved for h, moved in zip(self.states(x), self.moved[1:], strict=True)]
            case "frozen":
                return [gradients[0], *(torch.zeros_like(g) for g in gradients[1:])]
            case "usf":
                self.back = {
                    name: value.detach().sign() * self.s["spread"][name]
                    for name, value in self.w.items()
                    if name in feedback
                }
            case "kp":
                self.back = {name: value.view_as(self.w[name]) for name, value in feedback.items()}
        return self.gradients(x, y)[3]

    def output_error(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.readout(self.states(x)[-1]).detach().requires_grad_()
        (error,) = torch.autograd.grad(self.losses(z, y).sum(), z)
        return error

    def relaxed(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """a_0 … a_L after descending the energy of predictive coding, all states at once."""
        h = [state.detach() for state in self.states(x)]

        def ahead() -> list[Tensor]:
            return [h[l + 1] - self.block(l, h[l]) for l in range(self.s["depth"])]

        for _ in range(self.s["inference"]):
            free = [state.requires_grad_() for state in h[1:]]
            energy = torch.stack([error.square().sum() / 2 for error in ahead()]).sum()
            slopes = torch.autograd.grad(energy + self.losses(self.readout(h[-1]), y).sum(), free)
            h = [h[0], *((state - 0.2 * slope).detach() for state, slope in zip(free, slopes, strict=True))]
        h[0].requires_grad_()
        errors = ahead()
        (lowest,) = torch.autograd.grad(errors[0].square().sum() / 2, h[0], retain_graph=True)
        self.moved = [x, *(state.detach() for state in h)]
        return [lowest, *(-error.detach() for error in errors)]

    def learn(self, x: Tensor, y: Tensor, credits: list[Tensor]) -> None:
        """Leave in every parameter the gradient that the rule gives it."""
        match self.s["rule"]:
            case "fa" | "dfa":
                units = [self.embed(x)]
                for l in range(self.s["depth"]):
                    units.append(self.block(l, units[-1].detach()))
                goal = self.losses(self.readout(units[-1].detach()), y).mean()
                for unit, a in zip(units, credits, strict=True):
                    scale = a.square().mean().sqrt() + 1e-6 if self.s["credit"] == "rms" else 1.0
                    goal = goal + (unit * (a / scale).detach()).sum() / len(x)
                goal.backward()
            case "pc" | "pepita":
                at = self.moved
                units = [self.embed(at[0]), *(self.block(l, at[l + 1]) for l in range(self.s["depth"]))]
                goal = self.losses(self.readout(self.states(x)[-1].detach()), y).mean()
                if self.s["rule"] == "pepita":
                    goal = (self.readout(at[-1]) * self.output_error(x, y)).sum() / len(x)
                for unit, a in zip(units, credits, strict=True):
                    goal = goal + (unit * a).sum() / len(x)
                goal.backward()
            case _:
                self.losses(self.readout(self.states(x)[-1]), y).mean().backward()
                if self.s["rule"] == "frozen":
                    for name, value in self.w.items():
                        if name.startswith("blocks."):
                            value.grad = None
