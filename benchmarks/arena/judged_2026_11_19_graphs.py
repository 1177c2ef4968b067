"""Healthy programs on graphs, and generative and acting ones, for `judged_2026_11_19.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

from typing import Any

import torch
from fresh_2026_11 import fit, moons
from judged_2026_11_19_pictures import Averaged
from recipes import Program, digits, mlp, rng
from torch import Tensor, nn
from torch.nn import functional

# ── graphs ──────────────────────────────────────────────────────────────────────────────────────────


class SumsOfNeighbours(nn.Module):
    """A graph isomorphism network on matrices of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = mlp(2, 32, 32, norm=True), mlp(32, 32, 32, norm=True)
        self.head = mlp(64, 32, 1)

    def forward(self, edges: Tensor) -> Tensor:
        many, sums = edges.sum(2, keepdim=True), []
        h = torch.cat([many / 4, torch.ones_like(many)], 2)
        for layer in (self.one, self.two):
            h = layer((h + edges @ h / many.clamp(min=1) ** 0.5).flatten(0, 1)).view(*edges.shape[:2], -1).relu()
            sums.append(h.mean(1))
        return self.head(torch.cat(sums, 1))


def count_triangles(seed: int) -> Program:
    r = rng(127)
    share = 0.2 + 0.4 * torch.rand(900, 1, 1, generator=r)
    edges = (torch.rand(900, 10, 10, generator=r) < share).float().triu(1)
    edges = edges + edges.mT
    y = torch.linalg.matrix_power(edges, 3).diagonal(dim1=1, dim2=2).sum(1, keepdim=True).sqrt()
    return fit(SumsOfNeighbours(), (edges, (y - y.mean()) / y.std()), nn.MSELoss(), seed, rate=5e-3)


class Links(nn.Module):
    """Two convolutions of a graph; an edge is a product of two codes."""

    def __init__(self, near: Tensor) -> None:
        super().__init__()
        self.near: Tensor
        self.register_buffer("near", near)
        self.one, self.two, self.base = nn.Linear(16, 32), nn.Linear(32, 16), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = self.near @ self.two((self.near @ self.one(x)).relu())
        return h @ h.T + self.base


def link_prediction(seed: int) -> Program:
    """Edges of 60 nodes in three groups; few pairs are edges, so that they count more."""
    r = rng(128)
    group = torch.arange(60) % 3
    edges = (torch.rand(60, 60, generator=r) < 0.04 + 0.26 * (group[:, None] == group)).float().triu(1)
    edges = edges + edges.T
    near = edges + torch.eye(60)
    x = torch.randn(3, 16, generator=r)[group] + torch.randn(60, 16, generator=r)
    loss = nn.BCEWithLogitsLoss(pos_weight=(1 - edges).sum() / edges.sum())
    program = fit(Links(near / near.sum(1, keepdim=True)), (x, edges), loss, seed, rate=1e-2)
    program.batches = [(x, edges)] * 150
    return program


class Messages(nn.Module):
    """Rounds of messages along all edges, which see both ends and the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, 24)
        self.edges = nn.ModuleList(mlp(49, 32, 24, act=nn.SiLU) for _ in range(2))
        self.head = mlp(24, 24, 1, act=nn.SiLU)

    def forward(self, places: Tensor, charges: Tensor) -> Tensor:
        h, far = self.embed(charges[..., None]), torch.cdist(places, places)[..., None]
        many = far.shape[1]
        for edge in self.edges:
            pairs = h[:, :, None].expand(-1, -1, many, -1), h[:, None].expand(-1, many, -1, -1)
            h = h + edge(torch.cat([*pairs, far], -1)).mean(2)
        return self.head(h).mean(1)


def charges(seed: int) -> Program:
    """The energy of five charges in the plane."""
    r = rng(129)
    places, charge = torch.randn(1200, 5, 2, generator=r), torch.randint(2, (1200, 5), generator=r) * 2.0 - 1
    each = charge[:, :, None] * charge[:, None] / (torch.cdist(places, places) + 0.5)
    y = each.sum((1, 2))[:, None] - 10
    x = torch.cat([places, charge[..., None]], 2)
    program = fit(Messages(), (x, (y - y.mean()) / y.std()), nn.MSELoss(), seed, rate=4e-3, steps=200)
    program.batches = [((x[..., :2], x[..., 2]), y) for x, y in program.batches]
    return program


# ── generative and acting ───────────────────────────────────────────────────────────────────────────


def wasserstein_critic(seed: int) -> Program:
    """The critic with a penalty of its slope; every third step the generator moves."""
    model, maker = mlp(2, 48, 48, 1, act=lambda: nn.LeakyReLU(0.2)), mlp(4, 48, 2)
    second, done = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.9)), []
    program = fit(model, moons(), lambda out, y: out.mean(), seed, rate=2e-3, steps=200, size=64, betas=(0.5, 0.9))

    def play(program: Program, x: Tensor, y: Tensor) -> Tensor:
        made = maker(torch.randn(len(x), 4))
        between = (made.detach() + torch.rand(len(x), 1) * (x - made.detach())).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        loss = model(made.detach()).mean() - model(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        program.descend(loss)
        done.append(1)
        if len(done) % 3 == 0:
            second.zero_grad()
            (-model(maker(torch.randn(len(x), 4))).mean()).backward()
            second.step()
        return loss

    program.own_step, program.given_loss = play, False
    return program


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.write, self.read = mlp(64, 64, 16, act=nn.SiLU), mlp(8, 64, 64, act=nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.write(x).chunk(2, 1)
        far = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1)
        return self.read(mean + (0.5 * spread).exp() * torch.randn_like(mean)), far


def annealed_vae(seed: int) -> Program:
    """The weight of the second term grows from zero, and the loss with it."""
    x = (digits()[0] - digits()[0].min()) / (digits()[0].max() - digits()[0].min())
    weight = [0.0]
    loss = lambda out, y: (  # noqa: E731
        functional.binary_cross_entropy_with_logits(out[0], y, reduction="none").sum(1) + weight[0] * out[1]
    ).mean()
    program = fit(Variational(), (x, x), loss, seed, steps=200, size=64)
    program.after_step = lambda program: weight.__setitem__(0, min(1.0, weight[0] + 0.01))
    return program


def flow_matching(seed: int) -> Program:
    """The velocity from noise to data; an average of the weights is kept."""
    x, _ = moons()
    noise, time = torch.randn(len(x), 2, generator=rng(130)), torch.rand(len(x), 1, generator=rng(131))
    given = torch.cat([(1 - time) * noise + time * x, time], 1)
    program = fit(Averaged(mlp(3, 64, 64, 2, act=nn.SiLU)), (given, x - noise), nn.MSELoss(), seed, rate=4e-3, size=64)
    program.after_step = lambda program: program.model.update(0.05)
    return program


class Masked(nn.Linear):
    """Outputs see inputs of a lower order only."""

    def __init__(self, given: Tensor, made: Tensor, *, strict: bool) -> None:
        super().__init__(len(given), len(made))
        self.seen: Tensor
        self.register_buffer("seen", (made[:, None] > given if strict else made[:, None] >= given).float())

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.seen * self.weight, self.bias)


def pixel_by_pixel(seed: int) -> Program:
    """Black and white digits: each pixel from those before it (MADE)."""
    x = (digits()[0] > 0).float()
    places, hidden = torch.arange(64), torch.arange(192) % 63
    model = nn.Sequential(Masked(places, hidden, strict=False), nn.ReLU(), Masked(hidden, places, strict=True))
    return fit(model, (x, x), nn.BCEWithLogitsLoss(), seed, rate=5e-3, steps=200, size=64)


class Policy(nn.Module):
    """The mean of an action; the logarithm of its spread is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spread = mlp(6, 48, 48, 2, act=nn.Tanh), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), self.spread


def imitate(seed: int) -> Program:
    """Behaviour cloning: the likelihood of an expert's actions."""
    x = torch.randn(1200, 6, generator=rng(132))
    y = torch.stack([(x[:, 0] + x[:, 1]).tanh(), (x[:, 2] * x[:, 3]).sin()], 1)
    loss = lambda out, y: (0.5 * ((y - out[0]) / out[1].exp()).square() + out[1]).sum(1).mean()  # noqa: E731
    return fit(Policy(), (x, y), loss, seed, rate=4e-3, steps=200, optimiser=torch.optim.AdamW)


class Acts(nn.Module):
    """An actor and the critic that it follows."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Sequential(mlp(3, 48, 48, 1), nn.Tanh()), mlp(4, 48, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x)


def deterministic_policy(seed: int) -> Program:
    """Off-policy with noise on actions; two optimisers, the reward is logged."""
    model = Acts()
    other = torch.optim.Adam(model.critic.parameters(), 5e-3)
    x = torch.randn(2000, 3, generator=rng(133))
    program = fit(model, (x, x), lambda out, y: out.mean(), seed, steps=250)
    program.optimizer, program.given_loss = torch.optim.Adam(model.actor.parameters(), 2e-3), False

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        action = (model(x).detach() + 0.4 * torch.randn(len(x), 1)).clamp(-1, 1)
        reward = 1 - (action - (x[:, :1] - x[:, 1:2]).tanh()).square()
        error = functional.mse_loss(model.critic(torch.cat([x, action], 1)), reward)
        other.zero_grad()
        error.backward()
        other.step()
        program.descend(-model.critic(torch.cat([x, model(x)], 1)).mean())
        program.extra["reward"] = float(reward.mean())
        return error

    program.own_step, program.extra["others"] = act, [other]
    return program


GRAPHS_AND_MORE = (
    count_triangles, link_prediction, charges, wasserstein_critic, annealed_vae, flow_matching, pixel_by_pixel,
    imitate, deterministic_policy,
)  # fmt: skip
