"""The arena: small training programs, healthy ones and with planted faults, and what diagnoses say of them.

python benchmarks/arena/score.py                      every program, one seed; what is in the JSON is kept
python benchmarks/arena/score.py --seeds 0 1 2 --again
python benchmarks/arena/score.py gpt vit-softmax      programs whose names begin so
python benchmarks/arena/score.py --write              the tables of both pages alone
"""

import argparse
import json
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import sonde

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from faults import Fault  # noqa: E402
from harm import harms, mean  # noqa: E402

STORE = HERE / "results.json"
DOCS = HERE.parents[1] / "docs"
PAGES = (DOCS / "diagnose.md", DOCS / "diagnose-scores.md")
LATEST = ("judged, evening of 19 November 2026", "public, fourth")  # groups whose misses the page lists
Z = 1.96  # of a 95 % interval


def wilson(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not of:
        return math.nan, math.nan
    share, square = hits / of, Z * Z / of
    middle, wide = share + square / 2, Z * math.sqrt(share * (1 - share) / of + square / (4 * of))
    return max(0.0, (middle - wide) / (1 + square)), min(1.0, (middle + wide) / (1 + square))


def shown(hits: int, of: int) -> str:
    low, high = wilson(hits, of)
    return f"{hits} of {of} ({100 * low:.0f}–{100 * high:.0f} %)" if of else "–"


def train(program: Any, watch: Any = None) -> list[float]:
    losses = []
    for x, y in program.batches:
        loss = program.step(x, y)
        losses.append(float(loss.detach()))
        if watch is not None and program.logs:
            watch.log(loss, **{name: value for name, value in program.extra.items() if name == "reward"})
    return losses


def ask(program: Any, twin: dict[str, Any] | None, *, comparable: bool) -> dict[str, Any]:
    """What is said of a program.  A fault that does not harm is not asked about: see `harms`."""
    optimisers = [program.optimizer, *program.extra.get("others", [])]
    watch = sonde.watch(program.model, *optimisers, loss=program.loss if program.given_loss else None, runs=None)
    losses = train(program, watch)
    entry: dict[str, Any] = {"losses": [mean(losses[:3]), mean(losses[-10:])]}
    if twin is not None and comparable:
        entry["learned"] = learned(entry["losses"], twin["losses"])
        if not harms(entry["losses"], twin["losses"]):
            watch.close()
            return entry | {"harmless": True}
    rows: Any = []
    with_batch: Any = []
    begun = time.process_time()
    try:
        rows = watch.diagnose()
        begun = time.process_time()
        with_batch = watch.diagnose(batch=program.batches[0]) if program.given_loss else rows
    except Exception as error:  # a diagnosis that raises is wrong, and the others are still asked
        entry["raised"] = f"{type(error).__name__}: {error}"[:200]
    seconds = time.process_time() - begun
    watch.close()
    return entry | {
        "said": [one.name for one in with_batch if one.level != "note"],
        "rows": [one.name for one in rows if one.level != "note"],
        "silent": str(with_batch).startswith("Nothing is wrong"),
        "rows_silent": str(rows).startswith("Nothing is wrong"),
        "seconds": round(seconds, 2),
    }


def learned(losses: list[float | None], twin: list[float | None]) -> float:
    """How far a run came of the way on which its repaired twin went."""
    end, (first, last) = losses[1], twin
    return 0.0 if end is None or first is None or last is None else round((first - end) / (first - last), 3)


def named(recipe: str, fault: str | None) -> str:
    return recipe if fault is None else f"{recipe}-{fault}"


def measure(seeds: list[int], wanted: list[str], groups: dict[str, Any], *, again: bool) -> None:
    known = read()
    for group, module in groups.items():
        for recipe, fault in module.cases():
            name = named(recipe, fault)
            if wanted and not any(name.startswith(one) for one in wanted):
                continue
            for seed in seeds:
                key, twin = (f"{group}/{one}/{seed}" for one in (name, named(recipe, None)))
                if key in known and not again:
                    continue
                label = module.faults[fault] if fault else Fault(lambda program: None, (), (), ())
                program = module.build(recipe, fault, seed)
                entry = ask(program, known.get(twin) if fault else None, comparable=label.same_loss)
                known[key] = entry | {"faults": list(label.faults), "also": list(label.also)}
                STORE.write_text(json.dumps(known, indent=1, sort_keys=True))
                print(f"{key}: {told(known[key])}", flush=True)


def told(entry: dict[str, Any]) -> str:
    """An entry as a line of the log."""
    if "harmless" in entry:
        return f"harmless, {entry['losses']}"
    wrong, silent = "" if is_right(entry) else "WRONG ", " silent" if entry["silent"] else ""
    return f"{wrong}{entry['said']} rows {entry['rows']}{silent} {entry['seconds']} s  {entry['faults']}"


def is_right(entry: dict[str, Any]) -> bool:
    right = {*entry["faults"], *entry["also"]}
    if not entry["faults"]:
        return not entry["said"] and not entry["rows"]
    return bool(entry["said"]) and entry["said"][0] in right and {*entry["faults"]} <= {*entry["said"]} <= right


def read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    return known


def table(known: dict[str, Any], groups: Iterable[str] = ()) -> str:
    groups = list(groups) or sorted({key.split("/")[0] for key in known})
    lines = [f"| | {' | '.join(groups)} |", "|---|" + "---|" * len(groups)]
    columns = [_counts([entry for key, entry in known.items() if key.startswith(f"{group}/")]) for group in groups]
    lines += [f"| {words} | {' | '.join(column[words] for column in columns)} |" for words in columns[0]]
    return "\n".join(lines)


def _counts(entries: list[dict[str, Any]]) -> dict[str, str]:
    entries = [one for one in entries if "harmless" not in one]
    healthy, faulty = ([one for one in entries if bool(one["faults"]) is kind] for kind in (False, True))

    def first(key: str) -> int:
        return sum(bool(one[key]) and one[key][0] in {*one["faults"], *one["also"]} for one in faulty)

    idle = [one["silent"] for one in faulty if one.get("learned", 1.0) < 0.1]
    seconds = [one["seconds"] for one in entries]
    said = [name in {*one["faults"], *one["also"]} for one in faulty for name in one["said"]]
    labels = [(name in one["said"], name in one["rows"]) for one in faulty for name in one["faults"]]
    return {
        "healthy runs with a finding above a note": shown(sum(bool(one["said"]) for one in healthy), len(healthy)),
        "first finding is right": shown(first("said"), len(faulty)),
        "findings that are right (precision)": shown(sum(said), len(said)),
        "faults found (recall over labels)": shown(sum(with_batch for with_batch, _ in labels), len(labels)),
        'faulty runs told "nothing is wrong"': shown(sum(one["silent"] for one in faulty), len(faulty)),
        'of those that learned nothing, told "nothing is wrong"': shown(sum(idle), len(idle)),
        "without a batch: first finding is right": shown(first("rows"), len(faulty)),
        "without a batch: faults found": shown(sum(rows for _, rows in labels), len(labels)),
        "without a batch: healthy runs with a finding": shown(sum(bool(one["rows"]) for one in healthy), len(healthy)),
        "seconds a run beside its training, mean (largest)": f"{sum(seconds) / len(seconds):.1f} ({max(seconds):.1f})",
    }


def missed(known: dict[str, Any]) -> str:
    """Programs of the latest groups of which something was said wrongly, or not said."""
    lines = ["| program | expected | said, in how many runs | without a batch |", "|---|---|---|---|"]
    for group in LATEST:
        names = sorted({key.split("/")[1] for key in known if key.startswith(f"{group}/")})
        for name in names:
            runs = [one for key, one in known.items() if key.startswith(f"{group}/{name}/") and "harmless" not in one]
            if not all(is_right(one) for one in runs):
                faults = ", ".join(runs[0]["faults"]) or "nothing"
                lines.append(
                    f"| {name} | {faults} | {_tally(runs, 'said', 'silent')} | {_tally(runs, 'rows', 'rows_silent')} |"
                )
    return "\n".join(lines)


def _tally(runs: list[dict[str, Any]], key: str, silent: str) -> str:
    told = Counter(", ".join(one[key]) or ("“nothing is wrong”" if one[silent] else "–") for one in runs)
    return "; ".join(f"{words} ({many})" for words, many in told.most_common())


def write() -> None:
    """Renew the blocks of the pages."""
    known = read()
    blocks = {"latest": table(known, LATEST), "arena": table(known), "missed": missed(known)}
    for page in PAGES:
        text = page.read_text()
        for name, made in blocks.items():
            begin, end = f"<!-- benchmarks/{name} -->", f"<!-- end of {name} -->"
            head, found, rest = text.partition(begin)
            if found:
                text = f"{head}{begin}\n{made}\n{end}{rest.partition(end)[2]}"
        page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names of programs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--group", help="one group only, by the beginning of its name")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import faults
    import fresh_2026_11
    import held_out
    import judged_2026_11
    import judged_2026_11_18
    import judged_2026_11_19
    import judged_2026_11_19_evening

    groups: dict[str, Any] = {
        "development": faults.GROUP,
        "held-out": held_out.GROUP,
        "judged, November 2026": judged_2026_11.GROUP,
        "fresh, November 2026": fresh_2026_11.GROUP,
        "judged, 18 November 2026": judged_2026_11_18.GROUP,
        "judged, 19 November 2026": judged_2026_11_19.GROUP,
        "judged, evening of 19 November 2026": judged_2026_11_19_evening.GROUP,
    }
    if os.environ.get("SONDE_REPOSITORIES"):
        import public

        groups |= public.GROUPS
    groups = {name: module for name, module in groups.items() if name.startswith(given.group or "")}
    if not given.write:
        measure(given.seeds, given.names, groups, again=given.again)
    if STORE.exists():
        write()
        print(table(read()))


if __name__ == "__main__":
    main()
