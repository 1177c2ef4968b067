"""Local rules: every state has a target or a loss of its own.  N samples, D numbers read of a state."""

from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sonde.core.validated import validated
from sonde.rules.rule import CreditScale, Facts, LocalRule, Signal
from sonde.rules.states import Learner, StoredState, default_weights, seeded


class LocalHeads(nn.Module):
    """C_l, a linear head, and P_l, a linear map without bias, for every state."""

    def __init__(self, widths: list[int], outputs: int, similar: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(d, outputs) for d in widths)
        self.maps = nn.ModuleList(nn.Linear(d, min(d, similar), bias=False) for d in widths)


class Local(StoredState):
    """Heads and maps with their optimiser; between `credits` and `update` also the gradients of their parameters."""

    parts: ClassVar = {"learner": ""}

    def __init__(self, learner: Learner, by_token: bool) -> None:
        self.learner, self.by_token = learner, by_token
        self.gradients: list[Tensor] | None = None


@final
@validated
class PredSim(LocalRule):
    """Train every state with local losses; no credit crosses a block.

    Nøkland & Eidnes (2019), arXiv:1901.06656:  a_l = ∇_{h_l} [(1 − β)·ℓ(C_l h_l, y) + β·mean((S(P_l h_l) − S(y))²)].
    S are the cosines between the rows of a batch, each row minus its mean; y is the one-hot label.  The linear maps
    C_l and P_l (as many outputs as inputs, at most `similar`) learn from the same two losses, with Adam 1e-3.  For
    tokens and maps they read what the network's pooling reads; if each token has an output, they read each token.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`), and C_l starts with PyTorch's default
    weights, not at zero.
    Exact limit: with β = 0 and C_L equal to the readout, a_L is the exact gradient.
    """

    beta: Annotated[float, Ge(0), Le(1)] = 0.99
    similar: Annotated[int, Ge(1)] = 256
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "predsim"
    needs: ClassVar[str] = "labels; a head and a linear map for each state, trained locally"
    reads_top_gradient: ClassVar[bool] = False

    def init(self, facts: Facts, rng: torch.Generator) -> Local:
        widths = [shape[-1] if facts.by_token else facts.pooling.width(shape) for shape in facts.shapes]
        net = default_weights(LocalHeads, widths, facts.outputs, self.similar, rng=rng)
        return Local(Learner(net.to(facts.device, facts.dtype)), facts.by_token)

    def credits(self, state: Local, signal: Signal) -> list[Tensor]:
        net: Any = state.learner.net
        read = (lambda h: h) if state.by_token else signal.pooling.read
        alike_NN = similarities(signal.targets.flatten(1))
        with torch.enable_grad():
            states = [h.detach().requires_grad_() for h in signal.states]
            total = torch.zeros((), device=states[0].device, dtype=states[0].dtype)
            for h, head, to_similar in zip(states, net.heads, net.maps, strict=True):
                seen = read(h)
                output = head(seen).view_as(signal.output_NC)
                total = total + (1 - self.beta) * signal.loss.mean(output, signal.y)
                if self.beta:
                    apart = Dissimilarity.apply(to_similar(seen).flatten(1), alike_NN)  # type: ignore[no-untyped-call]
                    total = total + self.beta * apart
            parameters = list(net.parameters())
            found = torch.autograd.grad(total, [*states, *parameters], materialize_grads=True)
        state.gradients = list(found[len(states) :])
        return [g * len(g) for g in found[: len(states)]]

    def update(self, state: Local, signal: Signal) -> dict[str, Tensor]:
        assert state.gradients is not None, "credits comes before update"
        state.learner.follow(state.gradients)
        state.gradients = None
        return {}


class Dissimilarity(torch.autograd.Function):
    """mean((S(rows) − S*)²), S* symmetric.

    Both factors of S are the same rows, so the backward pass written here needs one product; automatic
    differentiation needs two.
    """

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, alike_NN: Tensor) -> Tensor:
        unit_ND, size_N1 = unit_rows(rows_ND)
        apart_NN = torch.addmm(alike_NN, unit_ND, unit_ND.mT, beta=-1)
        ctx.save_for_backward(unit_ND, size_N1, apart_NN)
        return apart_NN.square().mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, None]:
        unit_ND, size_N1, apart_NN = ctx.saved_tensors
        g_ND = apart_NN @ unit_ND
        along_N1 = (g_ND * unit_ND).sum(-1, keepdim=True)
        g_ND.addcmul_(unit_ND, along_N1 * (size_N1 / (size_N1 - _EPSILON).clamp_min(_EPSILON)), value=-1)
        g_ND.div_(size_N1 * apart_NN.numel() / (4 * weight))
        return g_ND.sub_(g_ND.mean(-1, keepdim=True)), None


_EPSILON = 1e-8


def unit_rows(rows_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Each row minus its mean, divided by its norm plus 1e-8; and the divisors."""
    centred_ND = rows_ND - rows_ND.mean(-1, keepdim=True)
    size_N1 = torch.linalg.vector_norm(centred_ND, dim=-1, keepdim=True) + _EPSILON
    return centred_ND.div_(size_N1), size_N1


def similarities(rows_ND: Tensor) -> Tensor:
    """Cosines between rows, each minus its mean, N×N; 0 for a constant row."""
    unit_ND, _ = unit_rows(rows_ND)
    cosines_NN: Tensor = unit_ND @ unit_ND.mT
    return cosines_NN


class Inverses(StoredState):
    """Q_l with their optimisers, the generator of the noise, and the number of steps."""

    parts: ClassVar = {"learners": "learners", "rng": "rng", "steps": "steps"}

    def __init__(self, learners: list[Learner], rng: torch.Generator) -> None:
        self.learners, self.rng, self.steps = learners, rng, 0

    def catch_up(self, trained: "Inverses") -> None:
        self.steps = trained.steps


@final
@validated
class DirectTargets(LocalRule):
    """Propagate a target of the last state to every other state by learned inverse mappings.

    Meulemans et al. (2020), arXiv:2006.14331, DDTP-linear:  the target of h_L is ĥ_L = h_L − `step`·g_L, that of h_l
    is h_l + Q_l(ĥ_L − h_L);  a_l = h_l − target.  Q_l learns to invert f, the map from h_l to h_L: Adam 1e-3 on
    ‖Q_l (f(h_l + σε) − f(h_l)) − σε‖² with σ = `noise` times the size of h_l and ε normal.  One Q_l is trained at each
    step, in turn.  For tokens and maps, Q_l maps what the network's pooling reads.
    Not as in the paper: credit is divided by its batch RMS (`credit_scale`).  The target is set at h_L, not at the
    output.  Q_l is not trained before the network, and the last block learns from the exact gradient.
    Exact limit: on an invertible linear network, Q_l is the inverse of the map from h_l to h_L.
    """

    step: Annotated[float, Gt(0)] = 0.1
    noise: Annotated[float, Gt(0)] = 0.01
    credit_scale: CreditScale = "rms"
    penalty: Annotated[float, Ge(0)] = 0.0

    label: ClassVar[str] = "DDTP"
    needs: ClassVar[str] = "the top gradient; a matrix for each state that learns to invert; noise through the blocks"

    def init(self, facts: Facts, rng: torch.Generator) -> Inverses:
        widths = [facts.pooling.width(shape) for shape in facts.shapes]
        return Inverses([Learner(_linear(widths[-1], d, facts, rng)) for d in widths[:-1]], seeded(rng))

    def credits(self, state: Inverses, signal: Signal) -> list[Tensor]:
        pooling, below = signal.pooling, signal.states[:-1]
        with torch.no_grad():
            move_ND = self.step * pooling.credit(signal.top_gradient)
            credits = [
                pooling.spread(learner.net(move_ND), h) for learner, h in zip(state.learners, below, strict=True)
            ]
        return [*credits, self.step * signal.top_gradient]

    def update(self, state: Inverses, signal: Signal) -> dict[str, Tensor]:
        if not state.learners:
            return {}
        layer = state.steps % len(state.learners)
        state.steps += 1
        pooling, h, top = signal.pooling, signal.states[layer], signal.states[-1]
        read_ND = pooling.read(h)
        size = self.noise * read_ND.square().mean().sqrt()
        noise_ND = torch.randn(read_ND.shape, generator=state.rng).to(read_ND) * size
        moved = signal.top_from(layer, pooling.moved(h, noise_ND[None])[0])
        change_ND = pooling.read(moved) - pooling.read(top)
        undone_ND = state.learners[layer].net(change_ND / size.clamp_min(torch.finfo(size.dtype).tiny))
        error = (undone_ND - noise_ND / size.clamp_min(torch.finfo(size.dtype).tiny)).square().mean()
        state.learners[layer].descend(error)
        return {"ddtp_inverse_error": error.detach()}


def _linear(inputs: int, outputs: int, facts: Facts, rng: torch.Generator) -> nn.Linear:
    """Q_l, N(0, 1/inputs) at the start."""
    with torch.random.fork_rng(devices=[]):
        linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(linear.weight, std=inputs**-0.5, generator=rng)
    return linear.to(facts.device, facts.dtype)
