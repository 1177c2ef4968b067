"""The command line: `sonde --help`.  Commands import what they need when they run."""

import errno
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde.cli.audit import audit
from sonde.cli.bench import bench
from sonde.cli.check import check
from sonde.cli.compare import compare
from sonde.cli.data import data
from sonde.cli.diagnose import diagnose
from sonde.cli.explain import explain
from sonde.cli.export import export
from sonde.cli.figures import figures
from sonde.cli.list import list_names
from sonde.cli.live import live
from sonde.cli.playground import playground
from sonde.cli.recompute import recompute
from sonde.cli.recovery import recovery
from sonde.cli.report import report
from sonde.cli.run import run
from sonde.cli.show import show
from sonde.cli.streams import lost, steady_streams
from sonde.cli.train import train
from sonde.cli.verify import verify
from sonde.core.errors import SondeError

STOPPED = 128 + signal.SIGINT  # exit code

Misused: Any = typer.BadParameter.__bases__[0]  # whatever is wrong with a command line, in all versions of typer

app = typer.Typer(
    name="sonde",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list")(list_names)
app.command("run")(run)
app.command("train")(train)
app.command("figures")(figures)
app.command("show")(show)
app.command("check")(check)
app.command("diagnose")(diagnose)
app.command("explain")(explain)
app.command("verify")(verify)
app.command("audit")(audit)
app.command("compare")(compare)
app.command("recovery")(recovery)
app.command("recompute")(recompute)
app.command("report")(report)
app.command("live")(live)
app.command("playground")(playground)
app.command("export")(export)
app.command("bench")(bench)
app.add_typer(data)


def _version(wanted: bool) -> None:
    if wanted:
        from sonde import __version__

        print(f"sonde {__version__}")
        raise typer.Exit


@app.callback()
def sonde(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere on the line.")
    ] = False,
) -> None:
    """See how deep networks learn: the signal going up, the credit coming back, layer by layer.

    Start with [bold]sonde run residual[/bold]: four small networks, ten figures, half a minute.
    """


@contextmanager
def _noticed_signals() -> Iterator[deque[int]]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does; names the signals that came.

    A signal that was ignored when the command began stays so: SIGHUP after `nohup`, SIGINT in a job of a script.
    """
    came: deque[int] = deque()

    def handle(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    usual = signal.SIG_DFL, signal.default_int_handler
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: was for number in numbers if (was := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def main() -> None:
    """Run a command: a mistake is one line and exit code 2; `--debug` shows where it was noticed."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    out, error = steady_streams()
    if arguments and not {"-h", "--help"} & {*arguments}:  # help has colours of its own
        from sonde.cli.terminal import Printable

        sys.stdout, sys.stderr = Printable(out), Printable(error)
    else:
        sys.stdout, sys.stderr = out, error
    with _noticed_signals() as came:
        try:
            code = _run([word for word in arguments if word != "--debug"], debug)
        except KeyboardInterrupt:
            print("sonde: stopped; the same command resumes where it was", file=sys.stderr)
            code = STOPPED
    if code == STOPPED and came:
        code = 128 + came[0]
    if (why := lost(out)) is not None:
        print(f"sonde: standard output cannot be written ({why}): send it elsewhere", file=sys.stderr)
        code = code or 2
    lost(error)
    sys.exit(code)


def _run(words: Sequence[str], debug: bool) -> int:
    """The exit code of a command."""
    try:
        return int(app(words, standalone_mode=False) or 0)
    except Misused as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            said = error.format_message().rstrip(".")
            command = error.ctx.command_path if error.ctx else "sonde"
            print(f"sonde: {said}: `{command} --help` tells", file=sys.stderr)
    except SondeError as error:
        if debug:
            traceback.print_exc()
        print(f"sonde: {error}", file=sys.stderr)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or debug:
            raise
        from sonde.store import files

        print(f"sonde: {files.explain_os_error(error, Path(error.filename))}", file=sys.stderr)
    return 2
