"""Healthy programs on language and sounds, and acting ones, for `judged_2026_11_19_evening.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value, no-untyped-def"

import copy
import functools
import math

import torch
from fresh_2026_11 import fit
from judged_2026_11_19_pictures import by_factor, clipped, scheduled, without_decay
from recipes import Causal, Program, chain_of_tokens, draw, mlp, of_tokens, rng
from torch import Tensor, nn
from torch.nn import functional

# ── language ────────────────────────────────────────────────────────────────────────────────────────


class Phrases(nn.Module):
    """Convolutions of three widths over words, the largest value of each, dropout (Kim)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(40, 24, padding_idx=0), nn.Dropout(0.5)
        self.looks, self.head = nn.ModuleList(nn.Conv1d(24, 16, wide) for wide in (2, 3, 4)), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x).transpose(1, 2)
        return self.head(self.drop(torch.cat([look(h).relu().amax(2) for look in self.looks], 1)))


def phrases(seed: int) -> Program:
    """Which of three pairs of words occurs in a text."""
    r = rng(170)
    x, y = torch.randint(1, 40, (1500, 14), generator=r), torch.randint(3, (1500,), generator=r)
    place, rows = torch.randint(12, (1500,), generator=r), torch.arange(1500)
    x[rows, place], x[rows, place + 1] = 5 + y, torch.tensor([9, 20, 9])[y]
    program = fit(Phrases(), (x, y), nn.CrossEntropyLoss(), seed, rate=0.8, steps=250, optimiser=torch.optim.Adadelta)
    return clipped(program, 3.0)


class Chain(nn.Module):
    """Scores of tags by a bidirectional LSTM, and of pairs of tags (CRF)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(20, 16), nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head, self.pairs = nn.Linear(48, 4), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.cell(self.words(x))[0]), self.pairs


def tag_chain(seed: int) -> Program:
    """The likelihood of a whole sequence of tags, by the forward algorithm."""
    r = rng(171)
    tags = [torch.randint(4, (1000,), generator=r)]
    for _ in range(8):
        stays = torch.rand(1000, generator=r) < 0.2
        tags.append(torch.where(stays, torch.randint(4, (1000,), generator=r), (tags[-1] + 1) % 4))
    y = torch.stack(tags, 1)
    x = 5 * torch.where(torch.rand(y.shape, generator=r) < 0.6, y, torch.randint(4, y.shape, generator=r))
    x = x + torch.randint(5, y.shape, generator=r)

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores, pairs = out
        path = scores.gather(2, y[..., None]).sum((1, 2)) + pairs[y[:, :-1], y[:, 1:]].sum(1)
        total = scores[:, 0]
        for place in range(1, scores.shape[1]):
            total = (total[:, :, None] + pairs).logsumexp(1) + scores[:, place]
        return (total.logsumexp(1) - path).mean()

    return fit(Chain(), (x, y), loss, seed, rate=8e-3, steps=120)


class Switch(nn.Module):
    """Each token goes to one of four experts; the spread of the load is kept even (Switch)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(wide, 4), nn.ModuleList(mlp(wide, 32, wide) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        most, which = share.max(-1)
        self.balance = 4 * (functional.one_hot(which, 4).float().mean((0, 1)) * share.mean((0, 1))).sum()
        out = sum((which == place)[..., None] * expert(x) for place, expert in enumerate(self.experts))
        return most[..., None] * out


class SparseReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(24, 32), nn.GRU(32, 32, batch_first=True)
        self.norm, self.switch, self.head = nn.LayerNorm(32), Switch(32), nn.Linear(32, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(self.words(x))[0]
        out = self.head(h + self.switch(self.norm(h)))
        return out, self.switch.balance


def switched(seed: int) -> Program:
    x = chain_of_tokens()
    loss = lambda out, y: of_tokens(out[0], y) + 0.01 * out[1]  # noqa: E731
    return clipped(fit(SparseReader(), (x[:, :-1], x[:, 1:]), loss, seed, rate=5e-3))


@functools.cache
def language() -> nn.Module:
    """A language model that was trained before."""
    with torch.random.fork_rng():
        torch.manual_seed(172)
        model, x = Causal(24), chain_of_tokens()
        program = fit(model, (x[:, :-1], x[:, 1:]), of_tokens, 172, rate=5e-3, steps=200)
        for batch in program.batches:
            program.step(*batch)
    return model


class Tuned(nn.Module):
    """A trained language model, of which only the biases learn, and a new head (BitFit)."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = copy.deepcopy(language()), nn.Linear(32, 2)
        self.model.head = nn.Identity()
        for name, p in self.model.named_parameters():
            p.requires_grad_(name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.model(x).mean(1))


def tuned_biases(seed: int) -> Program:
    """Whether most tokens of a text are even."""
    x = chain_of_tokens()[:, :16]
    y = ((x % 2 == 0).sum(1) > 8).long()
    program = fit(Tuned(), (x, y), nn.CrossEntropyLoss(), seed)
    learn = [p for p in program.model.parameters() if p.requires_grad]
    program.optimizer = torch.optim.AdamW(learn, 1e-2, weight_decay=0.0)
    return program


class Prefers(nn.Module):
    """A language model and a frozen copy of it; by how much more likely it finds the better answer (DPO)."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.reference = copy.deepcopy(language()), copy.deepcopy(language()).requires_grad_(False)

    def forward(self, better: Tensor, worse: Tensor) -> Tensor:
        def log(model: nn.Module, x: Tensor) -> Tensor:
            return model(x[:, :-1]).log_softmax(-1).gather(2, x[:, 1:, None])[:, :, 0].sum(1)

        with torch.no_grad():
            known = log(self.reference, better) - log(self.reference, worse)
        return 0.3 * (log(self.policy, better) - log(self.policy, worse) - known)


def preferences(seed: int) -> Program:
    """Of two continuations the one with more even tokens is preferred."""
    x = chain_of_tokens()[:, :13]
    a, b = x[:256], x[256:]
    first = ((a % 2 == 0).sum(1) >= (b % 2 == 0).sum(1))[:, None]
    both = torch.stack([torch.where(first, a, b), torch.where(first, b, a)], 1)
    model = Prefers()
    loss = lambda out, y: -functional.logsigmoid(out).mean()  # noqa: E731
    program = fit(model, (both, torch.ones(256)), loss, seed, rate=5e-4, steps=120)
    program.optimizer = torch.optim.AdamW(model.policy.parameters(), 5e-4)
    program.batches = [((x[:, 0], x[:, 1]), y) for x, y in program.batches]
    return program


class Counted(nn.Module):
    """Two vectors and two offsets for each word (GloVe)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(24, 12), nn.Embedding(24, 12)
        self.a, self.b = nn.Embedding(24, 1), nn.Embedding(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        i, j = x.unbind(1)
        return (self.one(i) * self.two(j)).sum(1) + self.a(i)[:, 0] + self.b(j)[:, 0]


def word_counts(seed: int) -> Program:
    """Logarithms of how often words stand together; rare pairs count less."""
    x = chain_of_tokens()
    count = torch.zeros(24, 24).index_put_(
        (x[:, :-1].flatten(), x[:, 1:].flatten()), torch.tensor(1.0), accumulate=True
    )
    pairs = count.nonzero()
    y = count[pairs[:, 0], pairs[:, 1]]
    loss = lambda out, y: ((y / 60).clamp(max=1) ** 0.75 * (out - y.log()).square()).mean()  # noqa: E731
    return fit(Counted(), (pairs, y), loss, seed, rate=0.1, steps=250, size=64, optimiser=torch.optim.Adagrad)


class Copies(nn.Module):
    """Reads bits, then writes them from memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(4, 48, batch_first=True), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, x.shape[1] // 2 :])


def curriculum(seed: int) -> Program:
    """Sequences to repeat, of one bit at first and of four at the end: the loss rises with each new length."""
    model, r = Copies(), rng(seed + 173)
    program = fit(model, (torch.zeros(8, 1), torch.zeros(8)), nn.CrossEntropyLoss(), seed, rate=8e-3)
    program.batches = []
    for t in range(240):
        long = 1 + t // 60
        bits = torch.randint(3, (48, long), generator=r)
        x = torch.cat([functional.one_hot(bits, 4), torch.tensor([0, 0, 0, 1]).expand(48, long, 4)], 1).float()
        program.batches.append((x, bits))
    program.before_loss = lambda out: out.transpose(1, 2)
    return clipped(program)


# ── sounds ──────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def tones() -> tuple[Tensor, Tensor, Tensor]:
    """Tones of three harmonics, 256 samples, the same with noise, and their pitch in 24 steps of an octave."""
    r, time = rng(174), torch.arange(256) / 256
    pitch, loud = 24 * torch.rand(900, 1, generator=r), torch.rand(900, 3, generator=r).square() + 0.05
    turn = 6.28 * 16 * 2 ** (pitch / 24) * time
    x: Tensor = sum(loud[:, [k]] * ((k + 1) * turn).sin() for k in range(3))
    return x, x + 0.2 * torch.randn(900, 256, generator=r), pitch


def pitch_bins(seed: int) -> Program:
    """Pitch as soft answers of 24 bins (CREPE): convolutions of the waveform, batch normalisation, dropout."""
    _, x, pitch = tones()
    y = torch.exp(-((torch.arange(24) - pitch).square()) / 4)
    parts = [nn.Conv1d(1, 16, 32, 4), nn.ReLU(), nn.BatchNorm1d(16), nn.MaxPool1d(2)]
    parts += [nn.Conv1d(16, 24, 8, 2), nn.ReLU(), nn.BatchNorm1d(24), nn.MaxPool1d(2), nn.Flatten(), nn.Dropout(0.2)]
    return fit(nn.Sequential(*parts, nn.Linear(120, 24)), (x[:, None], y), nn.BCEWithLogitsLoss(), seed)


class Harmonics(nn.Module):
    """Loudness of harmonics from a spectrum; oscillators of known pitch play them (DDSP)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(130, 96), nn.LayerNorm(96), nn.LeakyReLU(), nn.Linear(96, 3), nn.Softplus())

    def forward(self, x: Tensor, pitch: Tensor) -> Tensor:
        loud = self.body(torch.cat([torch.fft.rfft(x).abs() / 16, pitch / 12 - 1], 1))
        turn = 6.28 * 16 * 2 ** (pitch / 24) * torch.arange(256) / 256
        return sum(loud[:, [k]] * ((k + 1) * turn).sin() for k in range(3))


def harmonics(seed: int) -> Program:
    """Spectra of three lengths are compared, and so are their logarithms."""
    clean, x, pitch = tones()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for long in (32, 64, 128):
            window = torch.hann_window(long)
            a, b = (torch.stft(one, long, window=window, return_complex=True).abs() for one in (out, y))
            total = total + (a - b).abs().mean() + ((a + 0.1).log() - (b + 0.1).log()).abs().mean()
        return total

    program = fit(Harmonics(), (torch.cat([x, pitch], 1), clean), loss, seed, rate=5e-3)
    program.batches = [((x[:, :256], x[:, 256:]), y) for x, y in program.batches]
    return program


# ── acting ──────────────────────────────────────────────────────────────────────────────────────────


class Decides(nn.Module):
    """A transformer over rewards to come, states and actions in turn (Decision Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.state, self.action = nn.Linear(1, 24), nn.Linear(4, 24), nn.Embedding(4, 24)
        self.places, self.blocks = (
            nn.Parameter(0.02 * torch.randn(18, 24)),
            nn.ModuleList(
                nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True, norm_first=True) for _ in range(2)
            ),
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, ahead: Tensor, state: Tensor, action: Tensor) -> Tensor:
        h = torch.stack([self.ahead(ahead), self.state(state), self.action(action)], 2).flatten(1, 2) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(18)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h[:, 1::3]))


def decisions(seed: int) -> Program:
    """Offline: good and bad steps towards a goal in the plane; how much is still to come tells which."""
    r = rng(175)
    ways = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    place, goal = 3 * torch.randn(1200, 2, generator=r), 3 * torch.randn(1200, 2, generator=r)
    skill, states, actions, rewards = torch.rand(1200, generator=r), [], [], []
    for _ in range(6):
        states.append(torch.cat([place, goal], 1))
        far = (goal[:, None] - place[:, None] - ways).norm(dim=2)
        any_way = torch.randint(4, (1200,), generator=r)
        actions.append(torch.where(torch.rand(1200, generator=r) < skill, far.argmin(1), any_way))
        new = place + ways[actions[-1]]
        rewards.append((goal - place).norm(dim=1) - (goal - new).norm(dim=1))
        place = new
    state, action, reward = (torch.stack(one, 1) for one in (states, actions, rewards))
    ahead = reward.flip(1).cumsum(1).flip(1)[..., None] / 3
    program = fit(Decides(), (torch.cat([ahead, state / 3, action[..., None]], 2), action), of_tokens, seed, steps=200)
    program.optimizer = without_decay(program.model, 3e-3, 1e-2)
    program.batches = [((b[..., :1], b[..., 1:5], b[..., 5].long()), y) for b, y in program.batches]
    return scheduled(clipped(program), by_factor(lambda t: min(1.0, (t + 1) / 20)))


class Curious(nn.Module):
    """A network learns what a fixed random one says (random network distillation)."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.predict = mlp(6, 32, 16).requires_grad_(False), mlp(6, 64, 64, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.predict(x), self.target(x).detach()


def curiosity(seed: int) -> Program:
    loss = lambda out, y: (out[0] - out[1]).square().mean()  # noqa: E731
    x = torch.randn(1500, 6, generator=rng(176))
    program = fit(Curious(), (x, torch.zeros(1500)), loss, seed, steps=200)
    program.optimizer = torch.optim.Adam(program.model.predict.parameters(), 2e-3)
    return program


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = mlp(3, 48, 48, 4), nn.ModuleList(mlp(5, 48, 48, 1) for _ in range(2))
        self.heat = nn.Parameter(torch.tensor(-1.0))

    def act(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.actor(x).chunk(2, 1)
        known = torch.distributions.Normal(mean, spread.clamp(-4, 1).exp())
        raw = known.rsample()
        log = known.log_prob(raw) - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh(), log.sum(1, keepdim=True)

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.cat([critic(torch.cat([x, action], 1)) for critic in self.critics], 1)


def soft_actor_critic(seed: int) -> Program:
    """Two critics, an actor and a temperature, with three optimisers; the reward is logged."""
    model, teacher = Soft(), torch.randn(3, 2, generator=rng(177))
    program = fit(model, (torch.randn(2000, 3, generator=rng(178)), torch.zeros(2000)), nn.MSELoss(), seed, size=64)
    program.optimizer = torch.optim.Adam(model.critics.parameters(), 5e-3)
    actor, heat = torch.optim.Adam(model.actor.parameters(), 5e-3), torch.optim.Adam([model.heat], 1e-2)
    program.extra["others"], program.given_loss = [actor, heat], False

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            action = model.act(x)[0]
        reward = 1 - (action - (x @ teacher).tanh()).square().sum(1, keepdim=True)
        loss = program.descend(functional.mse_loss(model(x, action), reward.expand(-1, 2)))
        made, log = model.act(x)
        actor.zero_grad()
        (model.heat.exp().detach() * log - model(x, made).amin(1, keepdim=True)).mean().backward()
        actor.step()
        heat.zero_grad()
        (-model.heat * (log.detach() - 2).mean()).backward()
        heat.step()
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = step
    program.batches = draw(torch.randn(2000, 3, generator=rng(178)), torch.zeros(2000), 250, 64, seed)
    return program


SEQUENCES = (
    phrases, tag_chain, switched, tuned_biases, preferences, word_counts, curriculum, pitch_bins, harmonics, decisions,
    curiosity, soft_actor_critic,
)  # fmt: skip
