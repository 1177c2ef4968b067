"""The command line: `sonde --help`.  Commands import what they need when they run."""

import signal
import sys
import traceback
from collections import deque
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
from sonde.cli.train import train
from sonde.cli.verify import verify
from sonde.errors import SondeError

Misused: Any = typer.BadParameter.__bases__[
    0
]  # whatever is wrong with a command line, in all versions of typer

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


def _end_like_ctrl_c() -> deque[int]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, unless they are ignored; names those that came."""
    came: deque[int] = deque()

    def handle(number: int, frame: object) -> None:
        came.append(number)
        signal.raise_signal(signal.SIGINT)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, handle)
    return came


def main() -> None:
    """Run a command: a mistake is one line and exit code 2; `--debug` shows where it was noticed."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if arguments and not {"-h", "--help"} & {*arguments}:  # help has colours of its own
        from sonde.cli.terminal import Printable

        sys.stdout, sys.stderr = Printable(sys.stdout), Printable(sys.stderr)
    ended_by = _end_like_ctrl_c()
    try:
        sys.exit(app([word for word in arguments if word != "--debug"], standalone_mode=False) or 0)
    except Misused as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            said = error.format_message().rstrip(".")
            command = error.ctx.command_path if error.ctx else "sonde"
            print(f"sonde: {said}: `{command} --help` tells", file=sys.stderr)
        sys.exit(2)
    except SondeError as error:
        if debug:
            traceback.print_exc()
        print(f"sonde: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("sonde: stopped; the same command resumes where it was", file=sys.stderr)
        sys.exit(128 + (ended_by[0] if ended_by else signal.SIGINT))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
