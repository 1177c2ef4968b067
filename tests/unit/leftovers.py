"""Lists of what a rule does not allow and is there still.  A list may only shrink."""

import sys
from collections import Counter
from pathlib import Path


def read(file: Path) -> Counter[str]:
    """What is left over, with how often: a line each, `3 × something`."""
    lines = (line.partition(" × ") for line in file.read_text().splitlines() if " × " in line)
    return Counter({what: int(count) for count, _, what in lines})


def assert_only_these(found: Counter[str], file: Path) -> None:
    """Fails where there is more than the list has, and where the list has more than there is."""
    allowed = read(file)
    more = sorted(f"{what} ({found[what]}, allowed {allowed[what]})" for what in found if found[what] > allowed[what])
    assert not more, f"not allowed: {'; '.join(more[:20])}"
    gone = [what for what in allowed if allowed[what] > found[what]]
    assert not gone, f"{file.name} lists what is gone: run the test's file as a program ({'; '.join(gone[:5])}, …)"


def rewrite(found: Counter[str], file: Path) -> None:
    """Write the list again, without adding to it; with --from-scratch, whatever is found."""
    kept = found if "--from-scratch" in sys.argv or not file.exists() else found & read(file)
    file.write_text("".join(f"{count} × {what}\n" for what, count in sorted(kept.items())))
    print(f"{file.name}: {kept.total()}")
