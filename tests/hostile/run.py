"""Hostile stores against every command that reads: nothing is run, nothing outside is changed, nothing breaks.

python tests/hostile/run.py             400 stores, read in processes of 20 each: a quarter of an hour on one core
python tests/hostile/run.py 40          40 stores
python tests/hostile/run.py 7:8         the store with number 7

The flips and cuts are `tests/unit/test_verify.py`, which `make hostile` runs as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
STORES, TOGETHER, MOST = 400, 20, 1500  # megabytes


def make(folder: Path, first: int, last: int) -> None:
    """These stores, in a process of their own: what is made takes memory as well."""
    from hostile_stores import Workshop, hostile

    workshop = Workshop(folder)
    said = {number: hostile(workshop, number)[1] for number in range(first, last)}
    (folder / "said.json").write_text(json.dumps(said))


def read(folder: Path) -> None:
    """Read them in this process, and print what went wrong and the most memory it took."""
    from hostile_reading import guarded, peak, read_everything
    from hostile_stores import grounds_in

    faults: dict[str, list[str]] = {}
    largest = (0, "")
    for number, said in json.loads((folder / "said.json").read_text()).items():
        grounds = grounds_in(folder, int(number))
        begin, before = time.perf_counter(), peak()
        with guarded(grounds) as found:
            found += read_everything(grounds, grounds.root.parent / "out", much=True, slow=int(number) % 20 == 0)
        if peak() > before:
            largest = (peak(), f"{number} {said}")
        if found:
            faults[f"{number} {said}"] = found
        took = time.perf_counter() - begin
        print(f"{number:>4} {took:6.1f} s {peak():5d} MB {len(found)} {said[:150]!r}", file=sys.stderr)
    print(json.dumps({"faults": faults, "peak": largest}))


def in_process(what: str, *words: str) -> str:
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as here:
        command = [sys.executable, __file__, what, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=here, env=surroundings, check=True)
    return done.stdout


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--make"]:
        make(Path(words[1]), int(words[2]), int(words[3]))
        return 0
    if words[:1] == ["--read"]:
        read(Path(words[1]))
        return 0
    first, _, last = (words[0] if words else str(STORES)).rpartition(":")
    start, end = int(first or 0), int(last)
    faults: dict[str, list[str]] = {}
    largest = (0, "")
    for begin in range(start, end, TOGETHER):
        with tempfile.TemporaryDirectory() as folder:
            in_process("--make", folder, str(begin), str(min(begin + TOGETHER, end)))
            found = json.loads(in_process("--read", folder).splitlines()[-1])
        faults |= found["faults"]
        largest = max(largest, tuple(found["peak"]))
    for store, several in faults.items():
        print(f"store {store}")
        for one in several:
            print(f"  {one}")
    ran = sum("was run" in one or "imported" in one for several in faults.values() for one in several)
    changed = sum("outside" in one for several in faults.values() for one in several)
    broke = sum(map(len, faults.values())) - ran - changed
    print(f"{end - start} hostile stores: {ran} executions, {changed} with files outside changed, {broke} tracebacks")
    print(f"most memory: {largest[0]} MB ({largest[1]})")
    return int(bool(faults) or largest[0] > MOST)


if __name__ == "__main__":
    sys.exit(main())
