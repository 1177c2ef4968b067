"""One store of every hostile way, read by the quick commands; `make hostile` has 400 and all commands."""

from pathlib import Path

import pytest
from hostile_reading import QUICK, REST, SLOW, guarded, read_everything
from hostile_stores import WAYS, Workshop, hostile
from typer.main import get_command

from sonde.cli import app

PERIOD = sum(WAYS.values())
FIRST = [sum(list(WAYS.values())[:place]) for place in range(len(WAYS))]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("hostile"))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("number", FIRST, ids=[way.__name__ for way in WAYS])
def test_a_hostile_store_runs_nothing_changes_nothing_and_breaks_nothing(
    number: int, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grounds, said = hostile(workshop, number + PERIOD, small=True)
    with guarded(grounds) as faults:
        faults += read_everything(grounds, tmp_path / "out", much=False, slow=False)
    assert faults == [], said


def test_every_command_that_reads_a_store_is_tried() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    readers = {name for name, command in commands.items() if any(given.name == "runs" for given in command.params)}
    assert "show" in readers
    read_otherwise = {"recompute", "live"}  # one run at a time, and without its server
    assert {words[0] for words in (*QUICK, *REST, *SLOW)} | read_otherwise == readers - {"run", "train", "scaling"}
