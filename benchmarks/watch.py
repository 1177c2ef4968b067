"""What watching costs, beside the same loop without it and beside other tools.

Writes benchmarks/watch.json and the table in docs/watch.md.

Everything is measured in one process, in blocks that take turns, as processor time on one thread; a ratio is that of
two blocks of the same turn, and the table shows the median over turns.  Peak memory takes a process of its own each.

    python benchmarks/watch.py                            all of it, a quarter of an hour; let the machine be idle
    python benchmarks/watch.py --only resnet --turns 3    one model anew
"""

import argparse
import copy
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import torch
from torch import Tensor, nn

import sonde

HERE = Path(__file__).parent
PAGES = (HERE.parent / "docs" / "watch.md",)
BEGIN, END = "<!-- benchmarks/watch.json -->", "<!-- end -->"
RIVALS = {
    "torchmortem": "torchmortem",
    "torch-audit": "torch_audit",
    "TorchInstruments": "torchinstruments",
    "wandb": "wandb",
}


class Block(nn.Module):
    """A residual block of a small ResNet."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        shortcut = [nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.shortcut = nn.Sequential(*(shortcut if stride > 1 else []))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        shown: Tensor = self.relu2(out + self.shortcut(x))
        return shown


class Language(nn.Module):
    """Encoder layers of width 256."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(1000, 256), nn.Parameter(torch.zeros(64, 256))
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(self.embed(x) + self.place))
        return out.transpose(1, 2)


@dataclass
class Program:
    """A model and the batch it is trained on."""

    model: nn.Module
    x: Tensor
    y: Tensor


def tiny_mlp() -> Program:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return Program(nn.Sequential(*hidden, nn.Linear(64, 10)), torch.randn(64, 64), torch.randint(10, (64,)))


def small_resnet() -> Program:
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return Program(model, torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))


def transformer() -> Program:
    x = torch.randint(1000, (8, 64))
    return Program(Language(), x, x)


MODELS: dict[str, tuple[str, Callable[[], Program], int]] = {
    "mlp": ("tiny MLP, 64×4, batch 64", tiny_mlp, 500),
    "resnet": ("small ResNet, 32×32 images, batch 64", small_resnet, 25),
    "transformer": ("12-layer transformer, d 256, 8×64 tokens", transformer, 25),
}
"""Name → words, maker, steps of a block; a block holds whole rounds of the schedule."""


class Loop:
    """One copy of a program, trained with a tool or without."""

    def __init__(self, program: Program, tool: str, runs: Path) -> None:
        self.model = copy.deepcopy(program.model)
        self.x, self.y = program.x, program.y
        self.optimiser = torch.optim.Adam(self.model.parameters(), 1e-4)
        self.criterion = nn.CrossEntropyLoss()
        self.end: Callable[[], Any] = lambda: None
        self.after: Callable[[Tensor], Any] = lambda loss: None
        TOOLS[tool](self, runs)

    def steps(self, many: int) -> float:
        """Seconds of processor time."""
        start = time.process_time()
        for _ in range(many):
            self.optimiser.zero_grad()
            loss = self.criterion(self.model(self.x), self.y)
            loss.backward()
            self.optimiser.step()
            self.after(loss)
        return time.process_time() - start


def plain(loop: Loop, runs: Path) -> None:
    pass


def default(loop: Loop, runs: Path) -> None:
    loop.end = sonde.watch(loop.model, loop.optimiser, loss=loop.criterion, runs=runs).close


def ring(loop: Loop, runs: Path) -> None:
    """No watched step after the first ten: what is left is the ring of every step."""
    watch = sonde.watch(loop.model, loop.optimiser, loss=loop.criterion, runs=runs, every=1_000_000)
    loop.end = watch.close


def every_step(loop: Loop, runs: Path) -> None:
    loop.end = sonde.watch(loop.model, loop.optimiser, loss=loop.criterion, runs=runs, every=1).close


def closed(loop: Loop, runs: Path) -> None:
    watch = sonde.watch(loop.model, loop.optimiser, loss=loop.criterion, runs=None)
    loop.steps(1)
    watch.close()


def torchmortem(loop: Loop, runs: Path) -> None:
    from torchmortem import Autopsy

    autopsy = Autopsy(loop.model, optimizer=loop.optimiser)
    autopsy.attach()
    loop.after = lambda loss: autopsy.step(loss=loss.item())
    loop.end = autopsy.detach


def torch_audit(loop: Loop, runs: Path) -> None:
    from torch_audit import autopatch

    auditor = autopatch(loop.model, optimizer=loop.optimiser, every_n_steps=50, reporters=[])
    loop.end = auditor.unpatch


def torch_instruments(loop: Loop, runs: Path) -> None:
    from torchinstruments import inject_observer, remove_observer

    inject_observer(loop.model, output_dir=str(runs / "instruments"))  # a pass every minute
    loop.end = lambda: remove_observer(loop.model)


def wandb(loop: Loop, runs: Path) -> None:
    import wandb as tracker

    run = tracker.init(project="watch", dir=str(runs))
    tracker.watch(loop.model, log="all", log_freq=1)
    loop.after = lambda loss: run.log({"loss": loss.item()})
    loop.end = run.finish


TOOLS: dict[str, Callable[[Loop, Path], None]] = {
    "plain": plain,
    "sonde": default,
    "sonde, ring alone": ring,
    "sonde, every step": every_step,
    "sonde, closed": closed,
    "torchmortem": torchmortem,
    "torch-audit, every 50": torch_audit,
    "TorchInstruments, every minute": torch_instruments,
    "wandb.watch, every step": wandb,
}


def there(tool: str) -> bool:
    package = RIVALS.get(tool.split(",")[0].split(".")[0])
    return package is None or importlib.util.find_spec(package) is not None


def measure(name: str, turns: int, tools: Iterable[str] = TOOLS) -> dict[str, Any]:
    """Ratios of every tool to the plain loop of the same turn."""
    words, make, block = MODELS[name]
    torch.manual_seed(0)
    program = make()
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
    ):
        loops = {tool: Loop(program, tool, Path(folder)) for tool in tools if there(tool)}
        for loop in loops.values():
            loop.steps(10)  # the first ten are all watched: what follows is the steady state
        seconds: dict[str, list[float]] = {tool: [] for tool in loops}
        for _ in range(turns):
            for tool, loop in loops.items():
                seconds[tool].append(loop.steps(block) / block)
        for loop in loops.values():
            loop.end()
    base = seconds["plain"]
    ratios = {
        tool: sorted(found / alone for found, alone in zip(times, base, strict=True)) for tool, times in seconds.items()
    }
    return {
        "model": words,
        "turns": turns,
        "load": round(os.getloadavg()[0]),
        "milliseconds": round(1000 * statistics.median(base), 3),
        "ratios": {
            tool: {"median": statistics.median(found), "low": found[0], "high": found[-1]}
            for tool, found in ratios.items()
            if tool != "plain"
        },
    }


def measure_compiled(turns: int) -> dict[str, Any]:
    """Ratios of a watched to an unwatched loop of a compiled transformer of 3 layers: steps that are not read, and all.

    A turn is 25 steps, of which the last is a watched one.
    """
    from torch._dynamo import config

    config.skip_nnmodule_hook_guards = False  # two models of one class, of which one is watched
    torch.manual_seed(0)
    x = torch.randint(1000, (8, 64))
    program = Program(Language(layers=3), x, x)
    with tempfile.TemporaryDirectory() as folder:
        loops = [Loop(program, "plain", Path(folder)) for _ in range(2)]
        for loop in loops:
            loop.model = torch.compile(loop.model, fullgraph=True)  # type: ignore[assignment]
        default(loops[1], Path(folder))
        for loop in loops:
            loop.steps(26)
        unread, whole, alone = [], [], []
        for _ in range(turns):
            (plain_24, plain_1), (watched_24, watched_1) = ((loop.steps(24), loop.steps(1)) for loop in loops)
            unread.append(watched_24 / plain_24)
            whole.append((watched_24 + watched_1) / (plain_24 + plain_1))
            alone.append(plain_24 / 24)
        loops[1].end()
    known = {"unwatched steps": sorted(unread), "default": sorted(whole)}
    return {
        "turns": turns,
        "milliseconds": round(1000 * statistics.median(alone), 3),
        "ratios": {
            name: {"median": statistics.median(one), "low": one[0], "high": one[-1]} for name, one in known.items()
        },
    }


def attaching() -> float:
    """Seconds until a model of a thousand modules is watched."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(1000)))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    start = time.perf_counter()
    watch = sonde.watch(model, optimiser, runs=None)
    seconds = time.perf_counter() - start
    model(torch.ones(1, 8)).sum().backward()
    optimiser.step()
    watch.close()
    return seconds


def peak(name: str, tool: str) -> int:
    """Kilobytes at the most, in a process of its own that trains 60 steps."""
    command = [sys.executable, str(Path(__file__)), "--peak", name, tool]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(name: str, tool: str) -> None:

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(MODELS[name][1](), tool, Path(folder))
        loop.steps(60)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def memory(name: str) -> float:
    """Peak with a watch ÷ peak without; the median of three."""
    return statistics.median(peak(name, "sonde") / peak(name, "plain") for _ in range(3))


OWN = ("plain", "sonde", "sonde, ring alone", "sonde, closed")

BARS = {("mlp", "sonde"): 1.15, ("resnet", "sonde"): 1.05, ("transformer", "sonde"): 1.05}
BARS |= {(name, "sonde, ring alone"): 1.03 for name in ("resnet", "transformer")}
BARS |= {(name, "sonde, every step"): 1.6 for name in ("resnet", "transformer")}


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    models = found["models"].values()
    heads = " | ".join(model["model"] for model in models)
    lines = [f"| time of a step, relative to the loop alone | {heads} |", "|---|" + "---|" * len(models)]
    for tool in next(iter(models))["ratios"]:
        lines.append(f"| {tool} | {' | '.join(_cell(model['ratios'].get(tool)) for model in models)} |")
    alone = ", ".join(f"{model['milliseconds']:g} ms" for model in models)
    peaks = ", ".join(f"{ratio:.3f}" for ratio in found["memory"].values())
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    turns = sorted({model["turns"] for model in models}, reverse=True)
    rounds = str(turns[0]) if len(turns) == 1 else ", ".join(str(model["turns"]) for model in models)
    graphs = found["compiled"]["ratios"]
    loads = ", ".join(str(model["load"]) if "load" in model else "not recorded" for model in models)
    return "\n".join(
        [
            *lines,
            *_own_lines(found.get("own", {})),
            "",
            f"`torch.compile(fullgraph=True)` of such a transformer with 3 layers, relative to the compiled loop: "
            f"{_cell(graphs['unwatched steps'])} in steps that are not watched, {_cell(graphs['default'])} with the "
            f"default, {found['compiled']['turns']} turns.",
            "",
            f"A step alone: {alone}. Peak memory with a watch, relative to without: {peaks}. "
            f"Attaching to a model of 1,000 modules takes {found['attach_1000']:.2f} seconds.",
            f"Median of {rounds} turns (smallest–largest), processor time of one thread, {found['machine']}; "
            f"{versions}. Load of the machine: {loads}.",
            "",
        ]
    )


def _own_lines(models: dict[str, Any]) -> list[str]:
    """Sonde alone, measured later than the other tools."""
    if not models:
        return []
    known = list(models.values())
    turns, loads = (", ".join(str(model[what]) for model in known) for what in ("turns", "load"))
    return [
        "",
        f"Sonde alone, with the ring. Turns: {turns}. Load of the machine: {loads}.",
        "",
        f"| time of a step, relative to the loop alone | {' | '.join(model['model'] for model in known)} |",
        f"|---|{'---|' * len(known)}",
        *(f"| {tool} | {' | '.join(_cell(model['ratios'][tool]) for model in known)} |" for tool in OWN[1:]),
    ]


def placed(page: str, text: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}{END}{after}"


def _cell(ratio: dict[str, float] | None) -> str:
    return "–" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="rounds in which every tool has its turn")
    parser.add_argument(
        "--only", choices=[*MODELS, "compiled"], help="measure this model anew and keep what is known of the others"
    )
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "TOOL"), help=argparse.SUPPRESS)
    parser.add_argument("--own", action="store_true", help="measure Sonde alone, beside the table as it is")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peak:
        print_peak(*given.peak)
        return
    results = HERE / "watch.json"
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {"models": {}, "memory": {}}
    if given.own:
        chosen = [given.only] if given.only else list(MODELS)
        found["own"] = found.get("own", {}) | {name: measure(name, given.turns, OWN) for name in chosen}
        results.write_text(json.dumps(found, indent=1) + "\n")
    elif given.only in (None, "compiled"):
        found["compiled"] = measure_compiled(given.turns)
        results.write_text(json.dumps(found, indent=1) + "\n")
    for name in [] if given.own else [given.only] if given.only else MODELS:
        if name == "compiled":
            continue
        found["models"][name] = measure(name, given.turns)
        found["memory"][name] = memory(name)
        found |= {"attach_1000": attaching(), "machine": _machine(), "versions": _versions()}
        results.write_text(json.dumps(found, indent=1) + "\n")
    found["models"] = {name: found["models"][name] for name in MODELS if name in found["models"]}
    for page in PAGES:
        page.write_text(placed(page.read_text(), table(found)))
    print(table(found))
    for what, bar in (("unwatched steps", 1.02), ("default", 1.05)):
        value = found["compiled"]["ratios"][what]["median"]
        print(f"{'holds' if value <= bar else 'FAILS'}: torch.compile, {what}, {value:.3f} (at most {bar})")
    for (name, tool), bar in BARS.items():
        ratios = found["models"].get(name, {}).get("ratios", {}) | found.get("own", {}).get(name, {}).get("ratios", {})
        if tool in ratios:
            value = ratios[tool]["median"]
            print(f"{'holds' if value <= bar else 'FAILS'}: {tool} on {name}, {value:.3f} (at most {bar})")


def _versions() -> dict[str, str]:
    packages = ("torch", "torchmortem", "torch-audit", "torchinstruments", "wandb")
    present = [name for name in packages if importlib.util.find_spec(name.replace("-", "_")) is not None]
    return {name: importlib.metadata.version(name) for name in present}


def _machine() -> str:
    cores = os.cpu_count()
    return f"{platform.machine()} with {cores} cores"


if __name__ == "__main__":
    main()
