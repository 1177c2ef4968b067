"""Whether `sonde.scaling` names planted faults, leaves correct parametrisations alone, and finds published exponents.

Writes benchmarks/scaling.json and the tables of docs/scaling.md.  Tolerances were chosen on scaling_cases.py; the cases
of scaling_held_out.py are held out.

    python benchmarks/scaling.py                 all cases at the default sizes; four minutes of processor time
    python benchmarks/scaling.py --only SGD
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import polars as pl
import torch

import scaling_held_out
from scaling_cases import ADAM, CORRECT, FAULTS, SAME, SGD, Case, mlp
from sonde.cli.diagnose import DEFAULT_SIZES
from sonde.observe.scaling import scaling

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "scaling.md"

PUBLISHED: dict[str, tuple[Any, tuple[float, float, float]]] = {
    "standard, SGD": (partial(mlp, kind="sgd", readout=-0.5, rates=SAME, lr=1e-5), (-0.5, 0.5, 1.0)),
    "standard, Adam": (partial(mlp, rates=SAME, readout=-0.5, lr=1e-6), (0.0, 1.0, 1.5)),
    "µP, SGD": (partial(mlp, kind="sgd", rates=SGD, lr=1e-5), (0.0, 0.0, 0.0)),
    "µP, Adam": (partial(mlp, rates=ADAM, lr=1e-6), (0.0, 0.0, 0.0)),
}
"""Powers of the width of the change by the first step at input layer, hidden layers and output: Yang and Hu (2021),
sections 3 to 5, for SGD; Everett et al. (2024), arXiv:2407.05872, for Adam.  Rates are small: a step is linear."""

PLACES = {
    "input layer": ("inp", "change", 1),
    "hidden layers": ("hidden.* (Linear)", "change", 1),
    "output, by hidden weights": ("hidden.*.weight", "effect", 0),
}
"""Group, quantity and step.  The whole change of the output is a sum of powers; that by hidden weights is one power."""

WIDE = (256, 512, 1024, 2048)


CASES: dict[str, tuple[str, dict[str, Case]]] = {
    "faults": ("planted fault", FAULTS),
    "correct": ("correct parametrisation", CORRECT),
    "held-out faults": ("planted fault, held out", scaling_held_out.FAULTS),
    "held-out correct": ("correct parametrisation, held out", scaling_held_out.CORRECT),
    "second faults": ("planted fault, second held-out set", scaling_held_out.SECOND_FAULTS),
    "second correct": ("correct parametrisation, second held-out set", scaling_held_out.SECOND_CORRECT),
    "third faults": ("planted fault, third held-out set", scaling_held_out.THIRD_FAULTS),
    "third correct": ("correct parametrisation, third held-out set", scaling_held_out.THIRD_CORRECT),
}


def of_case(case: Case, *, is_fault: bool) -> dict[str, Any]:
    """One case at the default sizes."""
    start = time.process_time()
    found = scaling(case.make, {case.over: DEFAULT_SIZES[case.over]}, promise=case.promise, runs=None)[case.over]
    causes = [one.group for one in found.causes]
    wrong = {one.group: one.verdict for one in found.deviating}
    open_ones = [one.group for one in found.verdicts if one.verdict == "undecided"]
    known: dict[str, Any] = {
        "causes": causes,
        "deviating": wrong,
        "undecided": open_ones,
        "seconds": round(time.process_time() - start, 1),
    }
    if is_fault:
        known["named"] = any(part in group for group in causes for part in case.faulty)
        known["only"] = known["named"] and all(any(part in group for part in case.faulty) for group in causes)
    return known


def published(make: Any) -> list[float]:
    """The measured exponents of the change after one step, at wide networks; one sample, so that gradients agree."""
    from sonde.analysis.scaling import exponent_of

    torch.manual_seed(0)
    found = scaling(one_sample(make), {"width": WIDE}, promise="standard", runs=None, seeds=8)["width"]
    error = found.values.filter(group="(model)", quantity="gradient", step=0).select("seed", "size", error="value")
    exponents = []
    for group, quantity, step in PLACES.values():
        part = found.values.filter(group=group, quantity=quantity, step=step)
        if found.optimiser == "SGD":  # its steps are in proportion to the error, which differs from draw to draw
            part = part.join(error, on=["seed", "size"]).with_columns(pl.col("value") - pl.col("error"))
        known = exponent_of(part, [*WIDE, 2 * WIDE[-1]])
        exponents.append(float("nan") if known is None else round(known["value"], 3))
    return exponents


def one_sample(make: Any) -> Any:
    """The same network on the first sample of its batch."""

    def smaller(width: int) -> Any:
        model, optimiser, x, y, loss = make(width)
        return model, optimiser, x[:1], y[:1], loss

    return smaller


def table(results: dict[str, Any]) -> str:
    """The tables of docs/scaling.md."""
    lines: list[str] = []
    for kind, (heading, _) in CASES.items():
        if "faults" in kind:
            lines += ["", f"| {heading} | named | groups that are named |", "|---|---|---|"]
        else:
            lines += ["", f"| {heading} | groups that grow or vanish | undecided |", "|---|---|---|"]
        for name, one in results[kind].items():
            groups = {
                key: ", ".join(f"`{g}`" for g in one[key]) or "none" for key in ("causes", "deviating", "undecided")
            }
            cells = (
                ("yes" if one["named"] else "no", groups["causes"])
                if "named" in one
                else (groups["deviating"], groups["undecided"])
            )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| MLP | change at | published | measured |", "|---|---|---|---|"]
    for name, one in results["published"].items():
        for place, known, found in zip(PLACES, one["published"], one["measured"], strict=True):
            lines.append(f"| {name} | {place} | {known:g} | {found:g} |")
    return "\n".join(lines[1:])


def write_page(results: dict[str, Any]) -> None:
    """Put the tables between their marks."""
    begin, end = "<!-- benchmarks/scaling.json -->", "<!-- end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{table(results)}\n{end}{rest.split(end, 1)[1]}")


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--cases", action="store_true", help="leave out the published exponents")
    parser.add_argument("--kind", help="faults, correct, held-out, second or third: measure these alone")
    chosen, skip, kinds = (given := parser.parse_args()).only, given.cases, given.kind
    torch.set_num_threads(1)
    stored = HERE / "scaling.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    for name, (make, asked) in PUBLISHED.items():
        if chosen in name and not skip:
            results.setdefault("published", {})[name] = {"published": asked, "measured": published(make)}
            print(name, results["published"][name], flush=True)
    for kind, (_, cases) in CASES.items():
        known = results.setdefault(kind, {})
        for name, case in cases.items():
            if chosen in name and (kinds is None or kind.startswith(kinds)):
                known[name] = of_case(case, is_fault="faults" in kind)
                print(name, json.dumps(known[name], ensure_ascii=False), flush=True)
        results[kind] = {name: known[name] for name in cases if name in known}
    results["summary"] = {
        start or "tuned": {
            "named": sum(one["named"] for one in results[f"{start}faults"].values()),
            "named alone": sum(one["only"] for one in results[f"{start}faults"].values()),
            "false verdicts": sum(bool(one["deviating"]) for one in results[f"{start}correct"].values()),
        }
        for start in ("", "held-out ", "second ", "third ")
    }
    every = [one["seconds"] for kind in CASES for one in results[kind].values()]
    results["summary"]["slowest case, seconds"] = max(every, default=0.0)
    print(results["summary"])
    stored.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    write_page(results)


if __name__ == "__main__":
    main()
