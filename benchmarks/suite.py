"""A suite of small training programs with known faults: what Sonde, torchmortem and torch-audit say of each.

Writes benchmarks/suite.json and the tables in docs/diagnose-scores.md.  A suite is a folder with `suite.py` and
`cases/*.py`; each case has FAULTS, ALSO and build(variant, seed).  What is in the JSON is not measured again.

    python benchmarks/suite.py SUITE                     everything that is missing; an hour of one core
    python benchmarks/suite.py SUITE --tools sonde --seeds 0 --again
    python benchmarks/suite.py SUITE --remedies          train again with the remedy of the first finding
    python benchmarks/suite.py --write                   the tables alone
"""

import argparse
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import sonde

HERE = Path(__file__).parent
STORE = HERE / "suite.json"
PAGES = (HERE.parent / "docs" / "diagnose-scores.md",)
BEGIN, END = "<!-- benchmarks/suite.json -->", "<!-- end of suite -->"

# What other tools say, in the vocabulary of the suite; what has no word there counts under its own.
TORCHMORTEM = {
    "Dead units": "dead_units",
    "Vanishing gradients": "vanishing_gradient",
    "Gradient stalling": "vanishing_gradient",
    "Exploding gradients": "exploding_gradient",
    "Training divergence": "lr_too_high",
    "Catapult phase": "lr_too_high",
    "Edge of stability": "lr_too_high",
    "Loss plateau": "lr_too_low",
    "Activation saturation": "saturated_units",
    "Update ratio too low": "lr_too_low",
    "Update ratio too high": "lr_too_high",
    "Weight norm explosion": "exploding_gradient",
    "Stagnant weight norms": "lr_too_low",
    "Inter-layer weight norm imbalance": "bad_init",
}
TORCH_AUDIT = {
    "TA100": "nan_origin",
    "TA102": "exploding_gradient",
    "TA103": "dead_units",
    "TA104": "detached_graph",
    "TA105": "saturated_units",
    "TA301": "unnormalised_input",
    "TA405": "dead_units",
}

Train = Callable[..., Any]


def ask_sonde(program: Any, train: Train) -> tuple[list[str], float]:
    """Findings above a note, and the seconds that they took beside the training."""
    watch = sonde.watch(program.model, program.optimizer, loss=program.loss_fn, runs=None)
    train(program, lambda step, loss: watch.log(loss))
    begun = time.process_time()
    found = watch.diagnose(batch=program.batches[0])
    seconds = time.process_time() - begun
    watch.close()
    return [finding.name for finding in found if finding.level != "note"], seconds


def ask_torchmortem(program: Any, train: Train) -> tuple[list[str], float]:
    from torchmortem import Autopsy

    autopsy = Autopsy(program.model, optimizer=program.optimizer)
    autopsy.attach()
    train(program, lambda step, loss: autopsy.step(loss=loss.item()))
    begun = time.process_time()
    autopsy.detach()
    report = autopsy.get_report()
    assert report is not None
    said = sorted((one for one in report.findings if int(one.severity) >= 1), key=lambda one: -int(one.severity))
    names = [
        next((word for title, word in TORCHMORTEM.items() if one.title.startswith(title)), one.category) for one in said
    ]
    return list(dict.fromkeys(names)), time.process_time() - begun


def ask_torch_audit(program: Any, train: Train) -> tuple[list[str], float]:
    from torch_audit import autopatch

    auditor = autopatch(program.model, optimizer=program.optimizer, every_n_steps=50, reporters=[])
    train(program, None)
    begun = time.process_time()
    said = [one for one in auditor.findings if one.severity.name not in ("INFO", "DEBUG") and not one.suppressed]
    auditor.unpatch()
    said.sort(key=lambda one: one.severity.name != "ERROR")
    names = [TORCH_AUDIT.get(one.rule_id, one.rule_id) for one in said]
    return list(dict.fromkeys(names)), time.process_time() - begun


TOOLS = {"sonde": ask_sonde, "torchmortem": ask_torchmortem, "torch-audit": ask_torch_audit}


def load(suite: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, suite / "cases" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case


def measure(suite: Path, tools: list[str], seeds: list[int], names: list[str], *, again: bool) -> None:
    sys.path.insert(0, str(suite))
    train = importlib.import_module("suite").train
    known = read()
    for tool in tools:
        if tool != "sonde" and importlib.util.find_spec(tool.replace("-", "_")) is None:
            print(f"{tool} is not installed: left out")
            continue
        known.setdefault("versions", {})[tool] = importlib.metadata.version(tool)
        for name in names:
            case = load(suite, name)
            for seed in seeds:
                key = f"{tool}/{name}/{seed}"
                if key in known["answers"] and not again:
                    continue
                program = case.build("faulty" if case.FAULTS else "fixed", seed)
                try:
                    said, seconds = TOOLS[tool](program, train)
                except Exception as error:
                    print(f"{key}: left out, {type(error).__name__}: {error}")
                    continue
                entry = {"said": said, "seconds": round(seconds, 2), "faults": case.FAULTS, "also": case.ALSO}
                known["answers"][key] = entry
                STORE.write_text(json.dumps(known, indent=1))
                print(f"{key}: {', '.join(said) or 'nothing'} ({seconds:.1f} s)", flush=True)


def read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    return {"answers": {}, "remedies": {}} | known


# Remedies


def remedied(program: Any, first: Any, build: Callable[[], Any]) -> Any | None:
    """The same program with the first finding's remedy; None where that takes a person."""
    groups, model = program.optimizer.param_groups, program.model
    if first.name in ("lr_too_high", "lr_too_low"):
        factor = 0.1 if first.name == "lr_too_high" else 100.0 if "100 times" in " ".join(first.evidence) else 10.0
        for group in groups:
            group["lr"] *= factor
    elif first.name == "too_few_steps":
        program.batches = program.batches * 10
    elif first.name == "bad_init":
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    elif first.name == "wrong_mode":
        model.train()
    elif first.name == "stale_gradients":
        program.zero_grad = True
    elif first.name == "not_in_optimiser":
        held = {id(p) for group in groups for p in group["params"]}
        program.optimizer.add_param_group({"params": [p for p in model.parameters() if id(p) not in held]})
    elif first.name == "over_regularised":
        for group in groups:
            group["weight_decay"] = 1e-4
    elif first.name == "unnormalised_input":
        return _standardised(program, inputs=True)
    elif first.name == "unnormalised_target":
        return _standardised(program, inputs=False)
    elif first.name == "wrong_output_activation" and _ends_in_activation(model) and _takes_raw(program):
        model[-1] = nn.Identity()
    else:
        return None
    return program


def _ends_in_activation(model: nn.Module) -> bool:
    return isinstance(model, nn.Sequential) and not list(model[-1].parameters())


def _takes_raw(program: Any) -> bool:
    """Whether the loss works on outputs of either sign."""
    x, y = program.batches[0]
    with torch.no_grad():
        out = program.model(x)
        try:
            return bool(torch.isfinite(program.loss_fn(torch.randn_like(out) * 3, y)))
        except RuntimeError:
            return False


def _standardised(program: Any, *, inputs: bool) -> Any:
    place = 0 if inputs else 1
    seen = torch.cat([batch[place] for batch in program.batches])
    mean, std = seen.mean(0), seen.std(0) + 1e-8

    def mend(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        fixed = (pair[place] - mean) / std
        return (fixed, pair[1]) if inputs else (pair[0], fixed)

    program.batches, program.test = [mend(pair) for pair in program.batches], mend(program.test)
    return program


def try_remedies(suite: Path, seeds: list[int], names: list[str], *, again: bool) -> None:
    sys.path.insert(0, str(suite))
    shared = importlib.import_module("suite")
    known = read()
    for name in names:
        case = load(suite, name)
        for seed in seeds if case.FAULTS else []:
            key = f"{name}/{seed}"
            if key in known["remedies"] and not again:
                continue
            program = case.build("faulty", seed)
            watch = sonde.watch(program.model, program.optimizer, loss=program.loss_fn, runs=None)
            shared.train(program, lambda step, loss, watch=watch: watch.log(loss))
            found = watch.diagnose(batch=program.batches[0])
            watch.close()
            before = shared.evaluate(program)
            entry: dict[str, Any] = {"before": before, "finding": found[0].name if found else None}
            mended = remedied(case.build("faulty", seed), found[0], lambda: None) if found else None
            if mended is not None:
                shared.train(mended)
                entry["after"] = shared.evaluate(mended)
                twin = case.build("fixed", seed)
                shared.train(twin)
                entry["twin"] = shared.evaluate(twin)
            known["remedies"][key] = entry
            STORE.write_text(json.dumps(known, indent=1))
            print(key, entry, flush=True)


# Tables


def scores(answers: dict[str, Any], tool: str) -> dict[str, Any]:
    """Counts over cases and seeds of one tool."""
    count: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    slowest, total = 0.0, 0.0
    for key, entry in answers.items():
        if not key.startswith(f"{tool}/"):
            continue
        said, right = entry["said"], {*entry["faults"], *entry["also"]}
        total += entry["seconds"]
        slowest = max(slowest, entry["seconds"])
        count["asked"] += 1
        if not entry["faults"]:
            count["healthy"] += 1
            count["alarmed"] += bool(said)
            continue
        count["faulty"] += 1
        count["first"] += bool(said) and said[0] in right
        count["found"] += bool(right & set(said))
        count["strict"] += bool(set(entry["faults"]) & set(said))
        count["said"] += len(said)
        count["right"] += sum(name in right for name in said)
        count["labels"] += len(entry["faults"])
        for label in entry["faults"]:
            count["hit"] += label in said
            if label not in said:
                misses[f"{key.split('/')[1]}: {label}"] += 1
    return {**count, "misses": misses, "mean": total / max(1, count["asked"]), "slowest": slowest}


def share(over: int, under: int) -> str:
    return f"{100 * over / under:.0f} %" if under else "–"


def tables(known: dict[str, Any]) -> str:
    tools = [tool for tool in TOOLS if any(key.startswith(f"{tool}/") for key in known["answers"])]
    found = {tool: scores(known["answers"], tool) for tool in tools}
    lines: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (
            "healthy programs with a finding above a note",
            lambda s: f"{s.get('alarmed', 0)} of {s.get('healthy', 0)}",
        ),
        ("first finding is right", lambda s: share(s.get("first", 0), s["faulty"])),
        ("findings that are right (precision)", lambda s: share(s.get("right", 0), s.get("said", 0))),
        ("faults found (recall over labels)", lambda s: share(s.get("hit", 0), s["labels"])),
        ("programs with a fault found (strict recall)", lambda s: share(s.get("strict", 0), s["faulty"])),
        (
            "seconds a case beside its training, mean (largest)",
            lambda s: f"{s['mean']:.1f} ({s['slowest']:.1f})",
        ),
    ]
    shown = [f"| | {' | '.join(tools)} |", "|---|" + "---|" * len(tools)]
    shown += [f"| {words} | {' | '.join(get(found[tool]) for tool in tools)} |" for words, get in lines]
    asked = {tool: f"{tool} {found[tool]['asked']}" for tool in tools}
    versions = ", ".join(f"{tool} {known['versions'].get(tool, '')}".strip() for tool in tools if tool != "sonde")
    shown += ["", f"Programs times seeds: {', '.join(asked.values())}. {versions}.".replace("  ", " ")]
    if "sonde" in found:
        misses = [f"{name} ({many}×)" for name, many in sorted(found["sonde"]["misses"].items())]
        shown += ["", f"Missed by Sonde: {'; '.join(misses) or 'nothing'}."]
        shown += ["", *remedy_table(known["remedies"])]
    return "\n".join(shown)


LEARNED = 0.5
"""The score from which a run has learned, as docs/diagnose.md says."""


def remedy_table(remedies: dict[str, Any]) -> list[str]:
    by_case: dict[str, list[dict[str, Any]]] = {}
    for key, entry in remedies.items():
        by_case.setdefault(key.rpartition("/")[0], []).append(entry)
    lines = [
        "| program | first finding | score | with its remedy | score of the corrected twin |",
        "|---|---|---|---|---|",
    ]
    by_hand, tried, without_effect = [], 0, []
    for name, entries in sorted(by_case.items()):
        done = [entry for entry in entries if "after" in entry]
        if not done:
            by_hand.append(name)
            continue
        first = Counter(entry["finding"] for entry in done).most_common(1)[0][0]
        cells = [" / ".join(_score(entry[key]) for entry in done) for key in ("before", "after", "twin")]
        lines.append(f"| {name} | {first} | {cells[0]} | {cells[1]} | {cells[2]} |")
        tried += 1
        if not all(entry["after"] >= LEARNED for entry in done):
            without_effect.append(name)
    if not by_case:
        return []
    helped = (
        f"With the remedy of the first finding alone {tried - len(without_effect)} of {tried} programs learn (a score "
        f"of {LEARNED:g} and more); these do not: {', '.join(without_effect) or 'none'}."
    )
    return [*lines, "", helped, "", f"Remedies that take a person: {', '.join(by_hand) or 'none'}."]


def _score(value: float) -> str:
    if value != value:
        return "nan"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0e}"


def write() -> None:
    known = read()
    for page in PAGES:
        text = page.read_text()
        if BEGIN not in text:
            continue
        head, _, rest = text.partition(BEGIN)
        _, _, tail = rest.partition(END)
        page.write_text(f"{head}{BEGIN}\n{tables(known)}\n{END}{tail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", default=os.environ.get("SONDE_SUITE"))
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--cases", default="*", help="a pattern")
    parser.add_argument("--again", action="store_true", help="also what is known already")
    parser.add_argument("--remedies", action="store_true")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    suite = Path(chosen.suite) if chosen.suite else None
    if not chosen.write:
        if suite is None or not (suite / "cases").is_dir():
            print(f"no suite of programs in {suite or 'SONDE_SUITE, which is not set'}: nothing was measured")
            return
        names = sorted(path.stem for path in (suite / "cases").glob(f"{chosen.cases}.py"))
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
        if chosen.remedies:
            try_remedies(suite.resolve(), seeds, names, again=chosen.again)
        else:
            measure(suite.resolve(), chosen.tools.split(","), seeds, names, again=chosen.again)
    write()


if __name__ == "__main__":
    main()
