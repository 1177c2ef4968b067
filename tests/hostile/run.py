"""Hostile stores against every command that reads: nothing is run, nothing outside is changed, nothing breaks.

python tests/hostile/run.py             400 stores, in processes of 20 each: half an hour on one core
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


def read(first: int, last: int) -> dict[str, object]:
    """These stores in this process."""
    from hostile_reading import guarded, peak, read_everything
    from hostile_stores import Workshop, hostile

    faults: dict[str, list[str]] = {}
    largest = (0, "")
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for number in range(first, last):
            grounds, said = hostile(workshop, number)
            begin, before = time.perf_counter(), peak()
            with guarded(grounds) as found:
                found += read_everything(grounds, grounds.root.parent / "out", much=True, slow=number % 20 == 0)
            if peak() > before:
                largest = (peak(), f"{number} {said}")
            if found:
                faults[f"{number} {said}"] = found
            print(f"{number:4d} {time.perf_counter() - begin:6.1f} s {peak():5d} MB {len(found)} {said}", file=sys.stderr)
    return {"faults": faults, "peak": largest}


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--in-process"]:
        print(json.dumps(read(int(words[1]), int(words[2]))))
        return 0
    first, _, last = (words[0] if words else str(STORES)).rpartition(":")
    start, end = int(first or 0), int(last)
    faults: dict[str, list[str]] = {}
    largest = (0, "")
    for begin in range(start, end, TOGETHER):
        command = [sys.executable, __file__, "--in-process", str(begin), str(min(begin + TOGETHER, end))]
        with tempfile.TemporaryDirectory() as here:
            surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=here, env=surroundings)
        if done.returncode:
            faults[f"stores {begin} …"] = [f"the process ended with {done.returncode}"]
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        faults |= found["faults"]
        largest = max(largest, tuple(found["peak"]))
    for store, several in faults.items():
        print(f"store {store}")
        for one in several:
            print(f"  {one}")
    ran = sum("was run" in one or "imported" in one for several in faults.values() for one in several)
    changed = sum("outside" in one for several in faults.values() for one in several)
    print(f"{end - start} hostile stores: {len(faults)} with faults, {ran} executions, {changed} with files changed")
    print(f"most memory: {largest[0]} MB ({largest[1]})")
    return int(bool(faults) or largest[0] > MOST)


if __name__ == "__main__":
    sys.exit(main())
