"""Both bridges against a loop that follows their equations sample by sample, over several training steps in float64.

N samples, d width, L blocks, K noisy copies.
"""

import copy
import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from networks import samples
from sonde.core.generators import generator
from sonde.models import Model, ResidualMLP, VitMini
from sonde.network import Network, Signature
from sonde.rules import CreditBridge, StateBridge
from sonde.rules.bridges import InputNorm
from sonde.training.credit_assignment import CreditAssignment

N, L, SEED, LR = 4, 2, 11, 0.01
SIGNATURE = Signature(shape=(1, 8, 8), outputs=4, classifies=True)
MODELS: dict[str, Model] = {
    "residual_mlp": ResidualMLP(d=8, L=L, w2_std=0.3),
    "vit_mini": VitMini(d=8, L=L, heads=2),
}


class PlainNet:
    """Linear maps with GELU between them, and Adam as it is published."""

    def __init__(self, widths: list[int], rng: torch.Generator) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
            layers = [nn.Linear(a, b).double() for a, b in pairwise(widths)]
        self.weights = [p for layer in layers for p in (layer.weight, layer.bias)]
        self.first = [torch.zeros_like(p) for p in self.weights]
        self.second = [torch.zeros_like(p) for p in self.weights]
        self.steps = 0

    def __call__(self, h_d: Tensor, t: float, s_S: Tensor, weights: list[Tensor] | None = None) -> Tensor:
        x = torch.cat([h_d, torch.tensor([t], dtype=torch.float64), s_S])
        weights = self.weights if weights is None else weights  # type: ignore[assignment]
        for i in range(0, len(weights), 2):
            x = weights[i] @ x + weights[i + 1]
            if i + 2 < len(weights):
                x = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return x

    def descend(self, loss: Tensor) -> None:
        self.steps += 1
        for i, g in enumerate(torch.autograd.grad(loss, self.weights)):
            self.first[i] = 0.9 * self.first[i] + 0.1 * g
            self.second[i] = 0.999 * self.second[i] + 0.001 * g**2
            first = self.first[i] / (1 - 0.9**self.steps)
            second = self.second[i] / (1 - 0.999**self.steps)
            self.weights[i].data -= 1e-3 * first / (second.sqrt() + 1e-8)


def normalised(h_d: Tensor, input_norm: InputNorm) -> Tensor:
    if input_norm == "none":
        return h_d
    centred = h_d - h_d.mean()
    return centred / ((centred**2).mean() + 1e-5).sqrt()


def vector(h: Tensor) -> Tensor:
    """What a bridge reads of one sample's state: d, or the first of T×d tokens."""
    return h if h.ndim == 1 else h[0]


class Batch:
    """One forward pass with cuts, and all that a bridge may look at, sample by sample."""

    def __init__(self, net: Network, x: Tensor, y: Tensor) -> None:
        self.net, self.x, self.y = net, x, y
        with torch.no_grad():
            h = net.embed(x)
            self.states = [h]
            for block in net.blocks:
                h = h + block(h)
                self.states.append(h)
        top = h.clone().requires_grad_()
        z = net.readout(top)
        self.losses = [self.loss(z[i], i) for i in range(N)]
        (self.top_gradient,) = torch.autograd.grad(torch.stack(self.losses).sum(), top, retain_graph=True)
        self.errors = []
        for i in range(N):
            e = torch.exp(z[i].detach()) / torch.exp(z[i].detach()).sum()
            e[y[i]] -= 1
            self.errors.append(e)

    def loss(self, z_C: Tensor, i: int) -> Tensor:
        return torch.log(torch.exp(z_C).sum()) - z_C[self.y[i]]

    def state(self, layer: int, i: int) -> Tensor:
        return vector(self.states[layer][i])

    def read_out(self, h_d: Tensor) -> Tensor:
        whole = h_d[None] if self.states[0].ndim == 2 else h_d[None, None]
        z: Tensor = self.net.readout(whole)[0]
        return z

    def credit(self, rows: list[list[Tensor]]) -> list[Tensor]:
        """Credit of every layer in the shape of its state, from one vector a sample."""
        found = []
        for layer, row in enumerate(rows):
            a = torch.zeros_like(self.states[layer])
            for i, a_d in enumerate(row):
                vector(a[i]).copy_(a_d)
            found.append(a)
        return found

    def train(self, credits: list[Tensor]) -> None:
        """A step of plain descent: each unit along ⟨its output, â⟩/N, the readout along the mean loss."""
        net, gradients = self.net, {}
        units = [net.embed, *net.blocks]
        for layer, (unit, a) in enumerate(zip(units, credits, strict=True)):
            out = unit(self.x if layer == 0 else self.states[layer - 1])
            unit_credit = a / ((a**2).mean().sqrt() + 1e-6)
            parameters = list(unit.parameters())
            found = torch.autograd.grad((out * unit_credit).sum() / N, parameters)
            gradients |= dict(zip(parameters, found, strict=True))
        z = net.readout(self.states[-1])
        parameters = list(net.readout.parameters())
        mean = torch.stack([self.loss(z[i], i) for i in range(N)]).mean()
        gradients |= dict(zip(parameters, torch.autograd.grad(mean, parameters), strict=True))
        for p, g in gradients.items():
            p.data -= LR * g


class StateTwin:
    """G(h_l, l/L, s) predicts h_L."""

    def __init__(self, rule: StateBridge, d: int, steps: int) -> None:
        self.rule = rule
        side = 4 if rule.side == "error" else d
        self.net = PlainNet([d + 1 + side, 256, 256, d], generator(SEED, "rule"))

    def predict(self, batch: Batch, layer: int, i: int, h_d: Tensor) -> Tensor:
        s = batch.errors[i] if self.rule.side == "error" else vector(batch.top_gradient[i])
        return self.net(normalised(h_d, self.rule.input_norm), layer / L, s)

    def credits(self, batch: Batch) -> list[Tensor]:
        rows = []
        for layer in range(L):
            row = []
            for i in range(N):
                h_d = batch.state(layer, i).clone().requires_grad_()
                loss = batch.loss(batch.read_out(self.predict(batch, layer, i, h_d)), i)
                row.append(torch.autograd.grad(loss, h_d)[0])
            rows.append(row)
        return [*batch.credit(rows), batch.top_gradient]

    def learn(self, batch: Batch) -> dict[str, float]:
        errors = []
        for layer in range(L):
            for i in range(N):
                target = normalised(batch.state(L, i), self.rule.input_norm)
                missed = self.predict(batch, layer, i, batch.state(layer, i)) - target
                errors.append((missed**2).sum() / (target**2).sum())
        error = torch.stack(errors).mean()
        self.net.descend(error)
        return {"state_pred_error": error.item()}

    def owned(self) -> list[Tensor]:
        return list(self.net.weights)


class CreditTwin:
    """V(h_l, l/L, e) learns the loss a state leads to."""

    def __init__(self, rule: CreditBridge, d: int, steps: int) -> None:
        self.rule, rng = rule, generator(SEED, "rule")
        self.net = PlainNet([d + 1 + 4, 256, 256, 256, 1], rng)
        self.average = [p.detach().clone() for p in self.net.weights]
        self.noise = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=rng)))
        self.feedback = [torch.randn(d, 4, generator=rng).double() / 2 for _ in range(L + 1)]
        self.warmup = math.ceil(rule.warmup * steps)

    def value(self, batch: Batch, layer: int, i: int, h_d: Tensor) -> Tensor:
        return self.net(normalised(h_d, self.rule.input_norm), layer / L, batch.errors[i])[0]

    def credits(self, batch: Batch) -> list[Tensor]:
        if self.net.steps < self.warmup and self.rule.warmup_by == "nothing":
            return [torch.zeros_like(h) for h in batch.states]
        if self.net.steps < self.warmup:
            sent = [[self.feedback[layer] @ e for e in batch.errors] for layer in range(L + 1)]
            if batch.states[0].ndim == 2:
                return batch.credit(sent)
            tokens = batch.states[0].shape[1]
            return [torch.stack(row)[:, None].repeat(1, tokens, 1) / math.sqrt(tokens) for row in sent]
        rows = []
        for layer in range(L + 1):
            row = []
            for i in range(N):
                h_d = batch.state(layer, i).clone().requires_grad_()
                row.append(torch.autograd.grad(self.value(batch, layer, i, h_d), h_d)[0])
            rows.append(row)
        return [*batch.credit(rows)[:-1], batch.top_gradient] if self.rule.perturb else batch.credit(rows)

    def below(self, batch: Batch) -> dict[str, Tensor]:
        """What V learns of the states below the top."""
        found = []
        if not self.rule.perturb:
            noise = torch.randn(self.rule.copies, L, N, batch.states[0].shape[-1], generator=self.noise)
            for i in range(N):
                for layer in range(L):
                    value = self.value(batch, layer, i, batch.state(layer, i))
                    found.append((value - self.ahead(batch, layer, i, noise).detach()) ** 2)
            return {"credit_consistency": torch.stack(found).mean()}
        for layer in range(L):
            h = batch.states[layer]
            moved = h + self.rule.perturb * torch.stack(
                [
                    one.pow(2).mean().sqrt() * xi
                    for one, xi in zip(h, torch.randn(h.shape, generator=self.noise).double(), strict=True)
                ]
            )
            missed, changes = [], []
            for i in range(N):
                top = moved[i][None]
                with torch.no_grad():
                    for block in batch.net.blocks[layer:]:
                        top = top + block(top)
                    changes.append(batch.loss(batch.net.readout(top)[0], i) - batch.losses[i].detach())
                there = self.value(batch, layer, i, vector(moved[i]))
                missed.append(there - self.value(batch, layer, i, batch.state(layer, i)) - changes[-1])
            size = torch.stack(changes).pow(2).mean().sqrt()
            found += [(one / size) ** 2 for one in missed]
        return {"credit_change": torch.stack(found).mean()}

    def ahead(self, batch: Batch, layer: int, i: int, noise_KLNd: Tensor) -> Tensor:
        """−λ log mean exp(−V̄/λ) over noisy copies of the state one block ahead, the noise after LayerNorm."""
        next_d = normalised(batch.state(layer + 1, i), self.rule.input_norm)
        powers = []
        for k in range(self.rule.copies):
            moved = next_d + self.rule.noise * noise_KLNd[k, layer, i].double()
            value = self.net(moved, (layer + 1) / L, batch.errors[i], self.average)[0]
            powers.append(torch.exp(-value / self.rule.temperature))
        return -self.rule.temperature * torch.log(torch.stack(powers).sum() / self.rule.copies)

    def learn(self, batch: Batch) -> dict[str, float]:
        terminal, slopes = [], []
        size = torch.stack([vector(g) for g in batch.top_gradient]).pow(2).mean().sqrt()
        for i in range(N):
            h_d = batch.state(L, i).clone().requires_grad_()
            value = self.value(batch, L, i, h_d)
            terminal.append((value - batch.losses[i].detach()) ** 2)
            (slope,) = torch.autograd.grad(value, h_d, create_graph=True)
            slopes.append((((slope - vector(batch.top_gradient[i])) / size) ** 2).mean())
        terms = {
            **self.below(batch),
            "credit_terminal_value": torch.stack(terminal).mean(),
            "credit_terminal_gradient": torch.stack(slopes).mean(),
        }
        self.net.descend(torch.stack(list(terms.values())).sum())
        for old, new in zip(self.average, self.net.weights, strict=True):
            old.mul_(self.rule.average).add_((1 - self.rule.average) * new.detach())
        return {name: term.item() for name, term in terms.items()}

    def owned(self) -> list[Tensor]:
        return [*self.net.weights, *self.average]


def assert_twins_agree(model: Model, rule: StateBridge | CreditBridge, steps: int = 6) -> None:
    """Logs, network and everything the rule owns, after every step."""
    net = model.build(SIGNATURE, generator(1, "init")).double()
    plain = copy.deepcopy(net)
    x, y = samples(SIGNATURE, N * steps)
    assignment = CreditAssignment(net, rule, sample=x.double(), steps=steps, seed=SEED)
    kind = StateTwin if isinstance(rule, StateBridge) else CreditTwin
    twin = kind(rule, 8, steps)  # type: ignore[arg-type]
    for step in range(steps):
        some = slice(N * step, N * step + N)
        net.zero_grad()
        logs = assignment.backward(x[some].double(), y[some]).logs
        with torch.no_grad():
            for p in net.parameters():
                assert p.grad is not None
                p -= LR * p.grad
        batch = Batch(plain, x[some].double(), y[some])
        credits, expected = twin.credits(batch), twin.learn(batch)
        batch.train(credits)
        assert {name: value.item() for name, value in logs.items()} == pytest.approx(expected, rel=1e-9), step
        for (name, mine), theirs in zip(net.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11, msg=f"{name} after step {step}")
        state = assignment.state
        owned = list(state.learner.net.parameters())  # type: ignore[attr-defined]
        owned += state.average.parameters() if isinstance(rule, CreditBridge) else []  # type: ignore[attr-defined]
        for mine, theirs in zip(owned, twin.owned(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("input_norm", ["layer", "none"])
@pytest.mark.parametrize("side", ["error", "top_gradient"])
@pytest.mark.parametrize("model", MODELS)
def test_state_bridge_trains_as_its_equations_say(model: str, side: str, input_norm: InputNorm) -> None:
    assert_twins_agree(MODELS[model], StateBridge(side=side, input_norm=input_norm))  # type: ignore[arg-type]


@pytest.mark.parametrize("input_norm", ["layer", "none"])
@pytest.mark.parametrize("model", MODELS)
def test_credit_bridge_trains_as_its_equations_say_through_the_end_of_its_warm_up(
    model: str, input_norm: InputNorm
) -> None:
    rule = CreditBridge(input_norm=input_norm, copies=3, warmup=0.4, average=0.9)
    assert_twins_agree(MODELS[model], rule, steps=6)


@pytest.mark.parametrize("model", MODELS)
def test_credit_bridge_that_moves_states_learns_by_how_much_the_loss_changes(model: str) -> None:
    rule = CreditBridge(perturb=0.2, warmup=0.4, warmup_by="nothing", average=0.9)
    assert_twins_agree(MODELS[model], rule, steps=5)
