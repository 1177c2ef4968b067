"""`sonde data`: fetch data sets, and say where they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import DataRoot, Json, Quiet

if TYPE_CHECKING:
    from sonde.store.datasets import Dataset

data_app = typer.Typer(name="data", help="Fetch data sets, and say where they are.", no_args_is_help=True)


@data_app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="The data set: cifar10.", show_default=False)],
    data_root: DataRoot = None,
    quiet: Quiet = False,
) -> None:
    """Download a data set from its own site, verify its checksum, and store it where runs find it.

    An interrupted download resumes where it stopped.
    """
    from sonde.cli.terminal import progress_bar
    from sonde.core.errors import SondeError, pick
    from sonde.store.datasets import DATASETS
    from sonde.store.datasets.archive import data_folder, fetch_archive

    dataset, root = pick(DATASETS, name, "data set"), data_folder(data_root)
    if not isinstance(root, Path):
        raise SondeError(f"{root}: a data set is fetched into a folder; name one with --data-root")
    place = _unpacked(dataset, root)
    if place is not None:
        if not quiet:
            print(f"{place}: already there, nothing to fetch")
        return
    with progress_bar(dataset.archive.name, quiet=quiet, of_bytes=True) as on_progress:
        archive = fetch_archive(dataset.archive, root, on_progress=on_progress)
    if not quiet:
        print(f"{archive}: complete, checksum verified")
    dataset.find(root)  # raises where the data set cannot be used


@data_app.command("path")
def path_command(
    name: Annotated[str | None, typer.Argument(help="Only this data set.")] = None,
    data_root: DataRoot = None,
    json: Json = False,
) -> None:
    """Print where each data set is and in which form; exit with code 2 where one is missing."""
    from sonde.cli.terminal import print_json
    from sonde.core.errors import pick
    from sonde.store.datasets import DATASETS
    from sonde.store.datasets.archive import data_folder
    from sonde.store.datasets.cifar10 import FORMS, Absent

    root = data_folder(data_root)
    chosen = DATASETS if name is None else {name: pick(DATASETS, name, "data set")}
    found: list[dict[str, Any]] = []
    absent: Absent | None = None
    for key, dataset in chosen.items():
        known: dict[str, Any] = {"name": key, "root": str(root), "form": None, "path": None}
        try:
            source = dataset.find(root)
            known |= {"form": source.form, "path": str(source.place)}
            if not json:
                print(f"{key}: {source.place} ({FORMS[source.form]})")
        except Absent as error:
            absent = error
        found.append(known | {"looked_for": [str(place) for place in dataset.looked_for(root)]})
    if json:
        print_json(found if name is None else found[0])
    if absent is not None:
        raise absent


def _unpacked(dataset: "Dataset", root: Path) -> Path | None:
    """The folder of the official files, if they are unpacked; other forms do not replace the archive."""
    from sonde.core.errors import SondeError

    try:
        source = dataset.find(root)
    except SondeError:
        return None
    return source.place if source.form == "pickles" else None
