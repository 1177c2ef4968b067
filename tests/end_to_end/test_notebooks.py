"""The notebooks of the documentation run, and what they show is what they make.

python tests/end_to_end/test_notebooks.py      # run them anew and keep their outputs
"""

import copy
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install 'sonde[dev]'")
nbclient = pytest.importorskip("nbclient", reason="pip install 'sonde[dev]'")
pytest.importorskip("ipykernel", reason="pip install 'sonde[dev]'")

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 400_000  # bytes, outputs and pictures included
_NUMBER = re.compile(r"[-−+]?\d[\d.,:]*(?:e[-−]?\d+)?")


def run(path: Path, folder: Path) -> Any:
    """The notebook with the outputs it makes in an empty folder."""
    notebook = copy.deepcopy(nbformat.read(path, as_version=4))
    client = nbclient.NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return notebook


def kinds(notebook: Any) -> list[list[str]]:
    """For every cell of code, what kinds of output it has, and the words of its text."""
    shown = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            shown.append([kind for output in cell.outputs for kind in _kinds(output)])
    return shown


def _kinds(output: Any) -> list[str]:
    if output.output_type == "stream":
        return [f"{output.name}: {_NUMBER.sub('#', output.text)}"]
    return sorted(output.data)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_has_stored(path: Path, tmp_path: Path) -> None:
    assert kinds(run(path, tmp_path)) == kinds(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_says_nothing_of_the_machine_that_ran_it(path: Path) -> None:
    text = path.read_text()
    assert len(text) < LARGEST
    assert not re.search(r"/(?:root|home|tmp|Users)/|site-packages|Traceback|execution_state", text)
    assert all(cell.outputs or not cell.source for cell in nbformat.read(path, as_version=4).cells if "outputs" in cell)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 2


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    for path in [Path(word) for word in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            made = run(path, Path(folder))
        for cell in made.cells:
            cell.metadata.clear()
        made.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(made, path)
