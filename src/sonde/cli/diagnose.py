"""`sonde predict`, `check`, `scaling` and `diagnose`: a model before training, at other sizes, and in a stored run."""

import json as plain_json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sonde.cli.options import Details, Json, Quiet, RunsFolder, complete_run, print_left_out
from sonde.core.errors import SondeError, print_notice
from sonde.store import files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sonde.analysis.diagnosis.finding import Findings
    from sonde.observe.precheck import Precheck
    from sonde.observe.predict import Prediction
    from sonde.store.files import Place


def _function(help: str) -> Any:
    return typer.Argument(metavar="FILE.py:FUNCTION", help=help, show_default=False)


PictureFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Save the picture as .png, .pdf or .svg.")
]
BatchShape = Annotated[
    str | None, typer.Option(metavar="64,3,32,32", help="Shape of a batch, if the function returns none.")
]


def predict_command(
    make: Annotated[str, _function("A function that returns the model, or (model, x).")],
    shape: BatchShape = None,
    out: PictureFile = None,
    json: Json = False,
) -> None:
    """Predict a model before training it: the signal and the gradient that reach every module.

    The prediction needs the architecture and the distribution of each weight, but no data. The range beside a number
    is meant to hold nine of ten draws of the weights. If signal or gradient vanishes or explodes, the command names
    the module and a scale of the weights that prevents it. `sonde check` measures one draw.

    Example: [bold]sonde predict net.py:make --shape 32,64[/bold]
    """
    from sonde.observe.predict import predict

    model, *rest = _made(make, "make")
    if shape is None and not rest:
        raise SondeError(f"{make} returns no batch: use --shape, for example --shape 64,3,32,32")
    found = predict(model, sizes_of(shape) if shape is not None else rest[0])
    keys = ("parameters", "factor", "worst")
    scales = {name: getattr(found, name) for name in ("remedy", "best_scale")}
    scales = {name: scale and {key: getattr(scale, key) for key in keys} for name, scale in scales.items()}
    known = {"model": found.model, "words": found.words(), **scales, "table": found.table.to_dicts()}
    _save_and_print(found, known, json, out, "predict.png", texts=2)


def sizes_of(shape: str) -> tuple[int, ...]:
    """Parse 64,3,32,32."""
    try:
        sizes = tuple(int(n) for n in shape.replace("x", ",").replace("×", ",").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise SondeError(f"--shape {shape}: write whole numbers with commas, for example 64,3,32,32")
    return sizes


def check_command(
    make: Annotated[
        str, _function("A function that returns the model, or (model, x), (model, x, y), (model, x, y, loss).")
    ],
    batch: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="A function that returns the batch: x, (x, y) or (x, y, loss)."),
    ] = None,
    inits: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of fresh initialisations; with several, numbers have a range."),
    ] = 1,
    out: PictureFile = None,
    json: Json = False,
) -> None:
    """Check a model before training it: signal and gradient by depth, and what is missing, zero or not finite.

    One batch goes forward and backward through a float64 copy; the model does not change. With a loss, further copies
    are trained for fifty steps to find faults.

    Example: [bold]sonde check net.py:make[/bold]
    """
    from sonde.observe.check import check

    model, *rest = _made(make, "make")
    if batch is not None:
        rest = _made(batch, "--batch")
    if not rest or len(rest) > 3:
        raise SondeError(
            f"{make} gives no batch to check with: return (model, x, y, loss), or use --batch FILE.py:FUNCTION"
        )
    try:
        found = check(model, *rest, inits=inits)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        raise SondeError(f"{make}: the model does not run on this batch ({why}); --debug shows where") from error
    known: dict[str, Any] = {"model": found.model, "loss": found.loss_value, "remarks": found.remarks}
    known |= {"findings": [finding.as_dict() for finding in found.findings]}
    known |= {"table": found.table.to_dicts(), "facts": found.facts}
    _save_and_print(found, known, json, out, "check.png", texts=3)


def _save_and_print(
    found: "Precheck | Prediction", known: dict[str, Any], json: bool, out: Path | None, example: str, *, texts: int
) -> None:
    """Save the picture and print the table, whose first `texts` columns are text; with `json` print what is `known`."""
    from sonde.cli.terminal import fits, print_json, print_table, print_text

    if out is not None:
        save_picture(out, example, found.figure)
    if json:
        print_json(known)
        return
    heading, *lines = found.shown()
    while texts > 1 and not fits(heading, lines):  # the name of a module tells more than its shape and type
        texts -= 1
        heading, *lines = ([*line[:texts], *line[texts + 1 :]] for line in (heading, *lines))
    spaces = [" " * heading[:place].count(name) for place, name in enumerate(heading)]  # headings are keys
    columns = {name + spaces[place]: "left" if place < texts else "right" for place, name in enumerate(heading)}
    print_table(found.title, columns, lines)
    print_text()
    for line in found.words():
        print_text(line)
    if out is not None:
        print_text(f"The picture is {out}", dim=True, wrap=False)


def save_picture(out: Path, example: str, draw: "Callable[[], Figure]") -> None:
    """Draw a picture into the file of --out."""

    if out.suffix not in (".png", ".pdf", ".svg"):
        raise SondeError(f"--out {out}: name a .png, .pdf or .svg file")
    with files.clear_errors(files.prepare_output_file(out, "--out", example)):
        draw().savefig(out)


def _made(where: str, what: str) -> list[Any]:
    """What the function that FILE.py:FUNCTION names returns, as a list."""
    given = function_of(where, what)()
    return list(given) if isinstance(given, tuple) else [given]


def function_of(where: str, what: str) -> Callable[[], Any]:
    """Import the function that FILE.py:FUNCTION names; the folder of the file stays on the path."""
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        named = f"{what} {where}" if what.startswith("-") else where
        raise SondeError(f"{named}: write FILE.py:FUNCTION, for example train.py:make")
    if not Path(file).is_file():
        raise SondeError(f"{file} does not exist: write the path of the file, relative to this folder or absolute")
    from sonde.plugins import import_file

    found: Callable[[], Any] = import_file(Path(file), name)
    if not callable(found):
        raise SondeError(f"{where} is a {type(found).__name__}: name a function")
    return found


DEFAULT_SIZES = {"width": (64, 128, 256, 512), "depth": (4, 8, 16, 32)}


def scaling_command(
    make: Annotated[
        str, _function("A function of the size: returns the model, alone or with any of optimiser, x, y and loss.")
    ],
    over: Annotated[
        list[str],
        typer.Option(metavar="NAME=64,128,256,512", help="An argument of the function and its sizes; may be repeated."),
    ],
    lr: Annotated[
        str | None,
        typer.Option(
            metavar="2^-12..2^-4",
            help="Also train with each of these learning rates, and report whether the best one depends on the size.",
        ),
    ] = None,
    shape: BatchShape = None,
    optimizer: Annotated[
        str, typer.Option(metavar="adam|sgd", help="The optimiser, if the function returns none.")
    ] = "adam",
    rate: Annotated[float, typer.Option(metavar="LR", help="The learning rate of --optimizer.")] = 1e-3,
    seeds: Annotated[int, typer.Option(min=2, metavar="N", help="Number of seeds at each size.")] = 6,
    promise: Annotated[
        str,
        typer.Option(
            metavar="mup|standard",
            help="What is expected at every size. mup: every part learns equally. standard: the signals at "
            "initialisation are equal.",
        ),
    ] = "mup",
    runs: RunsFolder = Path("runs"),
    out: PictureFile = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model for ten steps at several sizes, and report what depends on the size.

    Every module and parameter group gets a verdict: stable, grows or vanishes. The verdict compares the measured power
    of the size with the one that µP requires for this optimiser. If they differ, the command names the initialisation,
    rate or multiplier to change. Each size and seed is a watched run. An interrupted command resumes.

    Example: [bold]sonde scaling mlp.py:make --over width=32,64,128,256 --shape 32,16[/bold]
    """
    from sonde.cli.terminal import print_json, print_table, print_text
    from sonde.observe.scaling import scaling

    axes = dict(_axis(text) for text in over)
    if out is not None and len(axes) > 1:
        raise SondeError("--out takes one picture: call the command once for each --over")
    found = scaling(
        function_of(make, "make"),
        axes,
        shape=None if shape is None else sizes_of(shape),
        optimizer=optimizer,
        lr=rate,
        rates=rates_of(lr) if lr is not None else (),
        seeds=seeds,
        promise=promise,
        runs=runs,
        progress=(lambda line: None) if quiet or json else print_notice,
    )
    for axis, result in found.items():
        if out is not None:
            save_picture(out, "scaling.png", result.figure)
        if not json:
            lines = [
                [
                    one.group,
                    one.about,
                    "–" if one.exponent is None else str(one.exponent),
                    f"{one.asked:g}",
                    one.verdict,
                ]
                for one in result.verdicts
            ]
            columns = {"group": "left", "what": "left", "exponent": "right", "asked": "right", "verdict": "left"}
            print_table(f"{result.factory} over {axis}", columns, lines)
            print_text()
            for line in result.words():
                print_text(line)
    if json:
        print_json({axis: result.as_dict() for axis, result in found.items()})
    elif out is not None:
        print_text(f"The picture is {out}", dim=True, wrap=False)


def _axis(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.partition("=")
    if not equals and name in DEFAULT_SIZES:
        return name, DEFAULT_SIZES[name]
    try:
        return name, tuple(int(size) for size in sizes.split(","))
    except ValueError:
        raise SondeError(f"--over {text}: write an argument and whole numbers, for example width=64,128,256") from None


def rates_of(text: str) -> list[float]:
    """Parse 2^-12..2^-4 into powers of two, or 1e-3,3e-3 into numbers."""
    first, dots, last = text.partition("..")
    try:
        if dots:
            low, high = (int(end.removeprefix("2^")) for end in (first, last))
            found = [2.0**power for power in range(low, high + 1)]
        else:
            found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) < 3 or min(found) <= 0:
        raise SondeError(f"--lr {text}: write three rates or more, as 2^-12..2^-4 or 1e-3,3e-3,1e-2")
    return found


def diagnose_command(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or its beginning (default: all runs).", autocompletion=complete_run),
    ] = None,
    runs: RunsFolder = Path("runs"),
    fail_on: Annotated[
        Literal["likely", "certain"] | None,
        typer.Option("--fail-on", help="Exit with code 1 if a finding is at least this certain."),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the findings as SARIF, for code hosts.")
    ] = None,
    details: Details = False,
    json: Json = False,
) -> None:
    """Find what is wrong in a run: where, since which step, the numbers that show it, and what to try.

    Without a name, every run of the store is diagnosed. A watched run is diagnosed from its rows. A run that Sonde
    trained is diagnosed from its losses, signal and gradient, and from the questions of `sonde audit`. `sonde explain
    NAME` explains a finding.

    Some faults need experiments on a copy of the model: call watch.diagnose(batch=(x, y)) in the training script.

    Example: [bold]sonde diagnose first-look --details[/bold]
    """
    from sonde.analysis.conclusions import of_findings
    from sonde.analysis.diagnosis import diagnose_store
    from sonde.cli.terminal import print_conclusion, print_json, print_text

    found, left_out = diagnose_store(runs, run)
    print_left_out(left_out)
    if sarif is not None:
        _write_sarif(sarif, found)
    if json:
        print_json({id: [finding.as_dict() for finding in findings] for id, findings in found.items()})
    elif not details:
        print_conclusion(of_findings(found, _next(found, runs)))
    else:
        for id, findings in found.items():
            print_text(id, bold=True)
            for line in str(findings).splitlines():
                print_text(line)
            print_text()
    if fail_on is not None and any(_is_as_certain(findings, fail_on) for findings in found.values()):
        raise typer.Exit(1)


def _next(found: "Mapping[str, Findings]", runs: "Place") -> str:
    """The command that tells more about the worst finding."""
    from sonde.analysis.diagnosis.finding import LEVELS

    wrong = [(LEVELS.index(one.level), one.name) for findings in found.values() for one in findings]
    if not wrong:
        return ""
    (run,) = found if len(found) == 1 else ("RUN",)
    more = f"`sonde diagnose {run} --runs {runs} --details`"
    return f"{more}; `sonde explain {max(wrong, key=lambda pair: pair[0])[1]}`."


def _is_as_certain(findings: "Findings", level: str) -> bool:
    from sonde.analysis.diagnosis.finding import LEVELS

    worst = findings.worst()
    return worst is not None and LEVELS.index(worst) >= LEVELS.index(level)


def _write_sarif(to: Path, found: "dict[str, Findings]") -> None:
    from sonde import __version__
    from sonde.analysis.diagnosis.finding import sarif

    files.write(
        files.prepare_output_file(to, "--sarif", "findings.sarif"),
        plain_json.dumps(sarif(found, __version__), indent=1, ensure_ascii=False).encode(),
    )
