"""How the cost of a sweep grows: measure it, keep the numbers in scale.json, and write docs/scale.md from them.

python benchmarks/scale.py              measure, then write the page: half an hour, on a machine that does nothing else
python benchmarks/scale.py reading …    measure these parts anew: scheduling, writing, reading, memory, single, planning
python benchmarks/scale.py --page       write the page anew
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from sonde.engine.bundles import MOST_IN_BUNDLE
from sonde.engine.cluster import MOST_SUBMITTED
from sonde.store.lock import RENEWED
from sonde.training.kernels import LANES
from sonde.training.train import WIDEST_STACKED

HERE = Path(__file__).parent
NUMBERS = HERE / "scale.json"
PAGE = HERE.parent / "docs" / "scale.md"
STORES = (1_000, 10_000)
LARGE = 5_000  # runs of the residual study, which have 17,000 rows each
PLANNED = 100_000
LISTED = 1000  # objects an S3 listing names at a time
SLOTS = (1, 32, 320)
UNITS = ("B", "kB", "MB", "GB", "TB")


def measure(parts: Collection[str]) -> dict[str, Any]:
    """These parts, and what they were measured on."""
    import cluster
    import store
    import writing
    from sonde_bench.table import machine

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        how: dict[str, Callable[[], Any]] = {
            "scheduling": cluster.measure,
            "writing": writing.measure,
            "reading": lambda: [store.measure(place / f"{runs}" / "runs", runs) for runs in STORES],
            "memory": lambda: store.measure_memory(place / "large" / "runs", LARGE, "residual"),
            "single": lambda: store.measure_long(place / "single"),
            "planning": planning,
        }
        found: dict[str, Any] = {"machine": machine(), "ray": version("ray"), "tiny": cluster.TINY}
        found["measured"] = {}
        for part in parts or how:
            load = round(os.getloadavg()[0])
            found[part] = how[part]()
            found["measured"][part] = {"on": f"{datetime.now(UTC):%Y-%m-%d}", "load": load}
    return found


def planning() -> dict[str, float]:
    """In a process of its own, because memory that was once taken stays."""
    command = [sys.executable, str(HERE / "planning.py"), str(PLANNED)]
    known: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return known


def table(headings: Iterable[str], lines: Iterable[Iterable[object]]) -> str:
    named = list(headings)
    rows = [named, ["---", *["---:"] * (len(named) - 1)], *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def size(count: float) -> str:
    power = min(int(math.log10(max(count, 1)) / 3), len(UNITS) - 1)
    return f"{count / 1000**power:.3g} {UNITS[power]}"


def kind(line: dict[str, Any]) -> str:
    return f"{line['study']} {line['scale']}, {line['rule']}"


def at_the_end(line: dict[str, Any], key: str) -> float:
    """Of a whole run: what is fixed, and what every epoch adds."""
    return float(line["fixed"][key] + line["epoch"][key] * line["epochs"])


def scheduling(lines: list[dict[str, Any]]) -> str:
    return table(
        ("runs", "nodes", "tasks", "wall", "seconds in a task", "not training, a task", "scheduling"),
        (
            (
                f"{line['runs']} {line['kind']}",
                line["nodes"],
                line["tasks"],
                f"{line['wall']:.1f} s",
                f"{line['task']:.2f}",
                f"{1000 * line['idle']:.0f} ms",
                f"{100 * line['cost']:.1f} %",
            )
            for line in lines
        ),
    )


def writing(lines: list[dict[str, Any]]) -> str:
    return table(
        ("a run of", "epochs", "left", "objects", "written on the way", "requests", "of these each epoch"),
        (
            (
                kind(line),
                line["epochs"],
                size(at_the_end(line, "left")),
                line["objects"],
                size(at_the_end(line, "written")),
                f"{at_the_end(line, 'requests'):.0f}",
                f"{line['epoch']['requests']:.0f}",
            )
            for line in lines
        ),
    )


def reading(lines: list[dict[str, Any]]) -> str:
    return table(
        (
            "runs",
            "rows",
            "index",
            "`show`, no index",
            "`show`",
            "`show --json`",
            "`report --no-figures`",
            "reading, all rows",
            "how each ended",
        ),
        (
            (
                f"{line['runs']:,}",
                f"{line['rows']:,}",
                size(line["index"]),
                *(taken(line[key]) for key in ("first", "show", "json", "report")),
                *(f"{line[key]:.1f} s" for key in ("load", "states")),
            )
            for line in lines
        ),
    )


def taken(cost: dict[str, float]) -> str:
    return f"{cost['processor']:.1f} s, {cost['megabytes']:,} MB"


def single(known: dict[str, Any]) -> str:
    """A run with many epochs and one with many layers."""
    names = {
        "long": f"{known['epochs']:,} epochs of {known['few']} layers",
        "deep": f"{known['layers']} layers, 3 epochs",
    }
    return table(
        ("a run with", "rows", "`show`", "`audit`", "`verify`"),
        (
            (
                said,
                f"{known[name]['rows']:,}",
                *(taken(known[name][key]) for key in ("show", "audit", "verify")),
            )
            for name, said in names.items()
        ),
    )


def memory(known: dict[str, Any]) -> str:
    """What was aimed at and what was measured; an asterisk marks what is above, of seconds those a processor worked."""

    def line(name: str, most: tuple[float, float] | None) -> tuple[str, ...]:
        cost = known[name]
        above = "\\*" if most and (cost["processor"] >= most[0] or cost["megabytes"] >= most[1]) else ""
        command, _, rest = name.partition(",")
        bar = f"less than {most[0]:g} s and {most[1]:,} MB" if most else "memory that does not grow"
        return (
            f"`{command}`{rest and f',{rest}'}",
            f"{cost['processor']:.1f} s",
            f"{cost['megabytes']:,} MB{above}",
            bar,
        )

    bars = {", no index": (20, 1500), "": (3, 500)}
    lines = [line(f"{name}{index}", most) for name in ("show", "audit") for index, most in bars.items()]
    lines += [line(name, None) for name in ("export", f"export, {known['fewer']:,} runs", "verify")]
    return table(("", "processor", "most memory", "goal"), lines)


def planned(known: dict[str, Any]) -> str:
    return table(
        (f"{PLANNED:,} runs of", "store", "objects", "LIST requests to read it", "requests to write it"),
        (
            (
                kind(line),
                size(PLANNED * at_the_end(line, "left")),
                f"{PLANNED * line['objects']:,}",
                f"{math.ceil(PLANNED * line['objects'] / LISTED):,}",
                f"{PLANNED * at_the_end(line, 'requests') / 1e6:.1f} million",
            )
            for line in known["writing"]
        ),
    )


def waited(known: dict[str, Any]) -> str:
    """Days for runs of a length, on so many slots, and which part of them is scheduling."""
    beside = idle(known)

    def days(length: float, slots: int) -> str:
        found = PLANNED * (length + beside) / slots / 86400
        return f"{found:,.0f}" if found >= 100 else f"{found:.2g}"

    return table(
        ("a run takes", *(f"{slots} slot{'s' * (slots > 1)}, days" for slots in SLOTS), "scheduling"),
        (
            (
                name,
                *(days(length, slots) for slots in SLOTS),
                f"{100 * beside / (length + beside):.2g} %",
            )
            for name, length in (("1 s", 1), ("1 min", 60), ("1 h", 3600))
        ),
    )


def goals(known: dict[str, Any]) -> str:
    """What was aimed at and what was measured; an asterisk marks what is above."""

    def line(what: str, measured: float, most: float, unit: str) -> tuple[str, str, str]:
        return what, f"{measured:.1f} {unit}" + "\\*" * (measured >= most), f"less than {most:g} {unit}"

    last = known["reading"][-1]
    runs = max(known["scheduling"], key=lambda line: (line["nodes"], line["runs"]))
    asked = [one for one in known["scheduling"] if (one["nodes"], one["runs"]) == (runs["nodes"], runs["runs"])]
    return table(
        ("goal", "measured", "at most"),
        [
            *(
                line(
                    f"scheduling of {one['runs']} tiny runs, {one['kind']}, on {one['nodes']} nodes",
                    100 * one["cost"],
                    10,
                    "%",
                )
                for one in asked
            ),
            line(f"`show` of {last['runs']:,} runs", last["show"]["processor"], 5, "s"),
            line(f"reading {last['runs']:,} runs for `report`", last["load"], 5, "s"),
        ],
    )


def page(known: dict[str, Any]) -> str:
    first, last = known["reading"][0], known["reading"][-1]
    times = PLANNED / last["runs"]
    template = Template((HERE / "scale.md.jinja").read_text(), undefined=StrictUndefined, keep_trailing_newline=True)
    text: str = template.render(
        known=known,
        goals=goals(known),
        scheduling=scheduling(known["scheduling"]),
        writing=writing(known["writing"]),
        reading=reading(known["reading"]),
        memory=memory(known["memory"]),
        single=single(known["single"]),
        planned=planned(known),
        waited=waited(known),
        runs=f"{PLANNED:,}",
        growth=f"{last['load'] / first['load']:.1f}",
        index=size(times * last["index"]),
        rows=f"{times * last['rows'] / 1e6:.0f}",
        more=f"{last['runs'] / first['runs']:g}",
        idle=f"{1000 * idle(known):.0f}",
        ahead=f"{MOST_SUBMITTED:,}",
        shared=shared(known),
        lanes=LANES,
        renewed=f"{RENEWED:g}",
        widest=WIDEST_STACKED,
        bundle=MOST_IN_BUNDLE,
        show=f"{times * last['show']['processor']:.0f}",
        **{key: f"{times * last[key]:.0f}" for key in ("load", "states")},
    )
    return text


def shared(known: dict[str, Any]) -> str:
    """What the time beside a task would be of the task's time, had it a core to itself."""
    alone = [line for line in known["scheduling"] if line["kind"] == "alone"]
    runs = max(line["runs"] for line in alone)
    few, many = (
        pick((line for line in alone if line["runs"] == runs), key=lambda line: line["nodes"]) for pick in (min, max)
    )
    part = many["idle"] / (many["idle"] + few["task"])
    return (
        f"{many['nodes']} nodes share {known['machine']['cores']} cores here, so a task takes {many['task']:.2f} s "
        f"instead of {few['task']:.2f} s on {few['nodes']} node. So the share of scheduling looks smaller than it is: "
        f"{1000 * many['idle']:.0f} ms beside {few['task']:.2f} s would be {100 * part:.1f} %. With a "
        f"core to itself that time may shrink as well: on {few['nodes']} node it is {1000 * few['idle']:.0f} ms."
    )


def idle(known: dict[str, Any]) -> float:
    """Seconds that a task costs beside its training: the most that was measured for runs alone."""
    return float(max(line["idle"] for line in known["scheduling"] if line["kind"] == "alone"))


def main() -> None:
    known = json.loads(NUMBERS.read_text())
    if "--page" not in sys.argv:
        found = measure(sys.argv[1:])
        measured = known["measured"] | found["measured"]
        known |= found | {"measured": measured}
        NUMBERS.write_text(json.dumps(known, indent=1) + "\n")
    PAGE.write_text(page(known))


if __name__ == "__main__":
    main()
