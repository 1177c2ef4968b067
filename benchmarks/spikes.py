"""Spikes that are planted in small programs, and what `loss_spike` says of them.  Writes benchmarks/spikes.json and
the table in docs/language-model.md.

A tiny language model with a mixture of experts, a ViT and an MLP are trained with Adam (of several ranks: SGD) for 170
steps.  Between steps 90 and 140 one thing goes wrong, of a kind that the diagnosis names.  Seeds below 9000 served to
choose spikes and thresholds, or have been reported before; the scores are of other seeds.

    python benchmarks/spikes.py                 60 spikes and 30 healthy runs, a few minutes
    python benchmarks/spikes.py --seeds 0 --few    of the seeds that thresholds were chosen by
"""

import argparse
import copy
import json
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, multiprocessing, nn
from torch.nn import functional

import sonde

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "language-model.md"
BEGIN, END = "<!-- benchmarks/spikes.json -->", "<!-- end -->"
STEPS = 170
FRESH = 9000  # the first seed that no threshold was chosen by
KINDS = {
    "batch": "batch",
    "rate": "learning rate",
    "attention": "attention logits",
    "overflow": "overflow",
    "rank": "another rank",
    "router": "router",
    "moment": "Adam's second moment",
}
"""Kind → as the finding says it."""


class Attention(nn.Module):
    """Several heads; causal or not."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (part(x).view(n, t, 4, d // 4).transpose(1, 2) for part in (self.q, self.k, self.v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        shown: Tensor = self.out(found.transpose(1, 2).reshape(n, t, d))
        return shown


class Experts(nn.Module):
    """Four experts, one for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        gates = torch.zeros(*x.shape[:-1], 4).scatter(-1, chosen, weights)
        return sum(
            (4 * gates[..., place, None] * expert(x) for place, expert in enumerate(self.experts)), torch.zeros_like(x)
        )


class Block(nn.Module):
    """Attention, then experts or two layers, normalised before.  `in_half`: the first layer is in float16."""

    def __init__(self, width: int, causal: bool, experts: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, causal)
        self.norm2 = nn.LayerNorm(width)
        self.in_half, self.moe = False, Experts(width) if experts else None
        if not experts:
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        if self.moe is not None:
            mixed: Tensor = x + self.moe(h)
            return mixed
        up = self.up(h)
        out: Tensor = x + self.down(functional.gelu(up.half().float() if self.in_half else up))
        return out


class Language(nn.Module):
    """A language model of two blocks, the second with experts, over 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(32, 32), nn.Parameter(torch.randn(16, 32))
        self.blocks = nn.ModuleList(Block(32, causal=True, experts=place == 1) for place in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(self.norm(h)).transpose(1, 2)
        return out


class Vision(nn.Module):
    """A ViT of two blocks over 16 patches and a token that is read out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.place = nn.Conv2d(1, 32, 4, 4), nn.Parameter(torch.randn(17, 32))
        self.blocks = nn.ModuleList(Block(32, causal=False, experts=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.pad(self.patches(x).flatten(2).mT, (0, 0, 1, 0)) + self.place
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(self.norm(h)[:, 0])
        return out


class Plain(nn.Module):
    """An MLP of three hidden layers.  `in_half`: what the second computes is float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(20, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.head = nn.Linear(48, 4)
        self.in_half = False

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = functional.relu(layer(x))
            x = x.half().float() if self.in_half and place == 1 else x
        out: Tensor = self.head(x)
        return out


def tokens(rng: torch.Generator, rule: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences in which the next token follows from the last, or from the first, by a table."""
    x = torch.randint(32, (16, 17), generator=rng)
    for place in range(16):
        x[:, place + 1] = rule[x[:, 0 if place % 2 else place]]
    x = torch.where(torch.rand(x.shape, generator=rng) < 0.02, torch.randint(32, x.shape, generator=rng), x)
    return x[:, :-1], x[:, 1:]


def images(rng: torch.Generator, rule: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.randint(4, (32,), generator=rng)
    return rule[y] + 0.7 * torch.randn(32, 1, 16, 16, generator=rng), y


def vectors(rng: torch.Generator, rule: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 20, generator=rng)
    return x, (x @ rule).argmax(1)


Data = Callable[[torch.Generator, Tensor], tuple[Tensor, Tensor]]
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Data, Callable[[torch.Generator], Tensor], float]] = {
    "language": (Language, tokens, lambda rng: torch.randperm(32, generator=rng), 3e-3),
    "vision": (Vision, images, lambda rng: 0.5 * torch.randn(4, 1, 16, 16, generator=rng), 1e-3),
    "mlp": (Plain, vectors, lambda rng: torch.randn(20, 4, generator=rng), 3e-3),
}
"""Name → model, batches, what they follow, rate."""


@dataclass
class Case:
    """One run: its program, its seed and what goes wrong (None: nothing)."""

    program: str
    kind: str | None
    seed: int
    at: int = 0  # the step in which it begins
    modules: list[str] = field(default_factory=list)  # where, if it has a place


class Run:
    """The training of a case under a watch."""

    def __init__(self, case: Case, rank: int = 0) -> None:
        self.case, self.rank = case, rank
        torch.manual_seed(case.seed)
        self.rng = torch.Generator().manual_seed(case.seed)
        case.at = int(torch.randint(90, 140, (1,), generator=self.rng))
        make, self.data, rule, rate = PROGRAMS[case.program]
        self.rule = rule(self.rng)
        self.model: Any = make()
        kinds: dict[str | None, Any] = {
            "rank": lambda p: torch.optim.SGD(p, 0.05 if case.program == "vision" else 0.2),
            None: lambda p: torch.optim.Adam(p, rate),
        }
        self.optimiser = kinds.get(case.kind, kinds[None])(self.model.parameters())
        self.place = int(torch.randint(2, (1,), generator=self.rng))
        self.strength = float(torch.rand(1, generator=self.rng))
        self.batches = torch.Generator().manual_seed(1000 * case.seed + rank)
        self.quiet: list[nn.Parameter] = []
        self._prepare()

    def _prepare(self) -> None:
        """Where it will go wrong."""
        kind, language = self.case.kind, self.case.program == "language"
        if kind == "attention":
            self.case.modules = ["blocks.0.attention", "blocks.1.attention"]
        elif kind == "router":
            self.case.modules = ["blocks.1.moe.router"]
        elif kind == "overflow":
            holder, layer, name = self._half()
            holder.in_half = True
            self.case.modules = [name]
            self.overflowing = layer
        elif kind == "moment":
            name = {"mlp": "layers.1", "language": "head", "vision": "patches"}[self.case.program]
            self.case.modules = [name]
            self.quiet = list(self.model.get_submodule(name).parameters())
            for parameter in self.quiet:
                register: Any = parameter.register_hook
                register(lambda grad: 1e-9 * grad if self.step < self.case.at else grad)
            rest = [p for p in self.model.parameters() if all(p is not one for one in self.quiet)]
            rate = self.optimiser.param_groups[0]["lr"]
            groups = [
                {"params": rest},
                {
                    "params": self.quiet,
                    "lr": (60 + 40 * self.strength) * (3 if self.case.program == "vision" else 1) * rate,
                },
            ]
            self.optimiser = torch.optim.Adam(groups, rate)
        assert language or kind != "router"

    def _half(self) -> tuple[Any, nn.Linear, str]:
        blocks = getattr(self.model, "blocks", None)
        if blocks is None:
            return self.model, self.model.layers[1], "layers.1"
        place = 0 if blocks[1].moe is not None else self.place
        return blocks[place], blocks[place].up, f"blocks.{place}.up"

    def batch(self) -> tuple[Tensor, Tensor]:
        """The batch of this step; a bad one where that is the case."""
        x, y = self.data(self.batches, self.rule)
        if self.step != self.case.at or self.case.kind != "batch":
            return x, y
        if x.is_floating_point():
            return (20 + 20 * self.strength) * x, (y + 1) % 4
        return x, torch.randint(32, y.shape, generator=self.batches)

    @property
    def weight(self) -> float:
        """Of the loss: a rank that adds up what others average has a large one."""
        bad = self.case.kind == "rank" and self.rank == 1 and self.step == self.case.at
        return 60 + 60 * self.strength if bad else 1.0

    def disturb(self) -> None:
        """What goes wrong besides batches, before the pass of this step."""
        since, kind = self.step - self.case.at, self.case.kind
        if kind == "rate" and since in (0, 4):
            for group in self.optimiser.param_groups:
                group["lr"] *= (20 + 30 * self.strength) ** (1 if since == 0 else -1)
        grows = 0 <= since < 10
        with torch.no_grad():
            for block in self.model.blocks if kind == "attention" and grows else ():
                for part in (block.attention.q, block.attention.k):
                    part.weight.add_((0.3 + 0.2 * self.strength) * torch.randn(part.weight.shape, generator=self.rng))
            if kind == "router" and grows:
                weight = self.model.blocks[1].moe.router.weight
                weight.mul_(-2 - self.strength if since == 0 else 1.3)
            if kind == "overflow" and grows:
                self.overflowing.weight.mul_(4.0 + 4 * self.strength)

    def train(self, model: nn.Module | None = None, **options: Any) -> Any:
        """The watch, after training."""
        model = self.model if model is None else model
        criterion = nn.CrossEntropyLoss()
        watch = sonde.watch(model, self.optimiser, loss=criterion, **{"runs": None, **options})
        for self.step in range(STEPS):
            self.disturb()
            x, y = self.batch()
            self.optimiser.zero_grad()
            (self.weight * criterion(model(x), y)).backward()
            self.optimiser.step()
        return watch

    step = 0


def _train_rank(rank: int, case: Case, port: int, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    run = Run(case, rank)
    watch = run.train(nn.parallel.DistributedDataParallel(run.model))
    if rank == 0:
        Path(out).write_text(json.dumps(said(watch)))
    watch.close()
    torch.distributed.destroy_process_group()


def said(watch: Any) -> dict[str, Any] | None:
    """What `loss_spike` says."""
    spike = next((one for one in watch.diagnose() if one.name == "loss_spike" and one.level != "note"), None)
    if spike is None:
        return None
    text = " ".join(spike.evidence)
    return {
        "kind": text.partition("Kind: ")[2].partition(".")[0],
        "step": spike.step,
        "modules": list(spike.modules),
        "text": text,
    }


def diagnosed(case: Case) -> dict[str, Any]:
    """Train the case and compare what is said with what was planted."""
    if case.kind == "rank":
        Run(case)  # sets the step
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            out = Path(folder) / "said.json"
            start: Any = multiprocessing.spawn  # type: ignore[attr-defined]
            start(_train_rank, (case, port, str(out)), nprocs=2)
            found = json.loads(out.read_text())
    else:
        watch = Run(case).train()
        found = said(watch)
        watch.close()
    score: dict[str, Any] = {
        "program": case.program,
        "kind": case.kind,
        "seed": case.seed,
        "at": case.at,
        "said": found,
    }
    if case.kind is None:
        return score | {"right": found is None}
    known = found or {"kind": None, "step": -1, "modules": []}
    last = case.at + (10 if case.kind == "overflow" else 1)  # an overflow begins when the numbers are too large
    score["kind_right"] = known["kind"] == KINDS[case.kind]
    score["step_right"] = case.at <= known["step"] <= last
    score["module_right"] = bool(set(case.modules) & set(known["modules"])) if case.modules else None
    return score | {"modules": case.modules, "right": score["kind_right"] and score["step_right"]}


def cases(first: int, few: bool) -> list[Case]:
    """60 spikes, and 30 runs without; `few`: one of each."""
    kinds = {
        program: [k for k in KINDS if program != "mlp" or k not in ("attention", "router")] for program in PROGRAMS
    }
    kinds["vision"].remove("router")
    pairs = [(program, kind) for program in PROGRAMS for kind in kinds[program]]
    many = len(pairs) if few else 60
    planted = [Case(*pairs[n % len(pairs)], first + n) for n in range(many)]
    healthy = [Case(list(PROGRAMS)[n % 3], None, first + 500 + n) for n in range(3 if few else 30)]
    return planted + healthy


def summary(scores: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of what is right."""
    planted = [one for one in scores if one["kind"]]
    placed = [one for one in planted if one["module_right"] is not None]
    healthy = [one for one in scores if not one["kind"]]
    by_kind = {
        kind: [sum(o["right"] for o in planted if o["kind"] == kind), sum(o["kind"] == kind for o in planted)]
        for kind in KINDS
    }
    return {
        "spikes": len(planted),
        "kind_and_step_right": sum(one["right"] for one in planted),
        "by_kind": by_kind,
        "with_a_module": len(placed),
        "module_right": sum(one["module_right"] for one in placed),
        "healthy": len(healthy),
        "findings_on_healthy": sum(not one["right"] for one in healthy),
    }


def table(found: dict[str, Any]) -> str:
    """The scores as Markdown."""
    heads = ["planted", *KINDS, "healthy runs"]
    cells = [f"{right} of {many}" for right, many in found["by_kind"].values()]
    silent = f"{found['healthy'] - found['findings_on_healthy']} of {found['healthy']}"
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
            f"| right | {' | '.join(cells)} | {silent} |",
            "",
            f"`python benchmarks/spikes.py` plants {found['spikes']} spikes in a small language model, a ViT, an MLP. "
            f"Kind and step are right for {found['kind_and_step_right']} of them, and the module for "
            f"{found['module_right']} of the {found['with_a_module']} that have one.",
            "",
        ]
    )


def placed(page: str, text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=FRESH, help=f"the first seed; below {FRESH}, nothing is written")
    parser.add_argument("--few", action="store_true", help="one spike of each kind and program")
    parser.add_argument("--only", choices=KINDS, help="spikes of this kind")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in cases(given.seeds, given.few) if given.only in (None, case.kind)]
    scores = []
    for case in chosen:
        scores.append(diagnosed(copy.deepcopy(case)))
        print(".", end="", flush=True)
        if not scores[-1]["right"] or scores[-1].get("module_right") is False:
            print(json.dumps(scores[-1], ensure_ascii=False))
    found = summary(scores)
    print(json.dumps(found, indent=1))
    if given.seeds >= FRESH and not given.few and not given.only:
        (HERE / "spikes.json").write_text(json.dumps({"summary": found, "runs": scores}, indent=1) + "\n")
        PAGE.write_text(placed(PAGE.read_text(), table(found)))


if __name__ == "__main__":
    main()
