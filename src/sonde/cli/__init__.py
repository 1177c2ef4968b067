"""The command line: `sonde --help`.

A file has one command or a few related ones.  A command reads its options, calls functions of the rooms below and
prints what they return; with `--json` it prints the same as JSON.  It imports what it needs when it runs, so that
`sonde --help` needs neither torch nor polars.  `options` has the options and selections that commands share, `terminal`
prints text, tables, JSON and bars, `execute` trains configurations for `run` and `train`.  `main` is below, with the
streams that cannot end a command and the signals that stop it.

Exit codes: 0; 1 where a run failed, diverged or something was found wrong; 2 for a mistake on the command line or in a
store, with one line that says how to fix it (`--debug` adds the traceback); 128 + the signal where a signal stopped
the command.  A stopped command saves its runs and resumes when it is called again.

To add a command: a function and its line in `_COMMANDS`.  Its docstring is its help.
"""

import errno
import io
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from sonde.cli.compare import audit_command, compare_command, recovery_command, reproduce_command
from sonde.cli.diagnose import check_command, diagnose_command, predict_command, scaling_command
from sonde.cli.export import export_command
from sonde.cli.names import explain_command, fetch_command, list_command, path_command
from sonde.cli.report import figures_command, live_command, playground_command, report_command
from sonde.cli.store import recompute_command, remove_command, show_command, verify_command
from sonde.cli.train import bench_command, run_command, train_command
from sonde.core.errors import SondeError, print_notice, printable
from sonde.store import files

_STOPPED = 128 + signal.SIGINT  # exit code
_READER_GONE = (errno.EPIPE, errno.EBADF)

Misused: Any = typer.BadParameter.__bases__[0]
"""The base class of every mistake on a command line, in all versions of typer."""


def _without_types(params: list[Any]) -> list[Any]:
    """The parameters of a command, with flags that show no type in help: a flag takes no value."""
    for one in params:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


app = typer.Typer(
    name="sonde",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Your own model": {
        "diagnose": diagnose_command,
        "explain": explain_command,
        "check": check_command,
        "predict": predict_command,
        "scaling": scaling_command,
    },
    "Train": {"run": run_command, "train": train_command, "list": list_command},
    "Stored runs": {
        "show": show_command,
        "report": report_command,
        "live": live_command,
        "compare": compare_command,
        "audit": audit_command,
        "recovery": recovery_command,
        "figures": figures_command,
        "export": export_command,
        "reproduce": reproduce_command,
        "recompute": recompute_command,
        "verify": verify_command,
        "rm": remove_command,
    },
    "More": {"playground": playground_command, "bench": bench_command},
}
"""Panel of `sonde --help` → name → function."""

data_app = typer.Typer(
    name="data", cls=_Group, help="Download data sets, and print where they are.", no_args_is_help=True
)
_DATA_COMMANDS: dict[str, Callable[..., None]] = {"fetch": fetch_command, "path": path_command}


def _paragraphs(text: str | None) -> str:
    """A docstring with one line per paragraph, which a terminal of any width wraps."""
    return "\n\n".join(" ".join(one.split()) for one in (text or "").split("\n\n"))


for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, cls=_Command, rich_help_panel=_panel, help=_paragraphs(_command.__doc__))(_command)
for _name, _command in _DATA_COMMANDS.items():
    data_app.command(_name, cls=_Command, help=_paragraphs(_command.__doc__))(_command)
app.add_typer(data_app, rich_help_panel="More")


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
        bool, typer.Option("--debug", help="Show the traceback of an error; works anywhere on the line.")
    ] = False,
) -> None:
    """Measure how deep networks learn: the signal that reaches each layer, and the gradient or credit that returns.

    Your own loop: add [bold]watch = sonde.watch(model, optimizer)[/bold], train, then run [bold]sonde diagnose[/bold].

    A first study of depth: [bold]sonde run residual[/bold]. It takes about a minute.
    """


def main() -> None:
    """Run the command of `sys.argv` and exit with its code; a mistake is one line on standard error and code 2."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    out, error = steady_streams()
    if arguments and not {"-h", "--help"} & {*arguments}:  # help has colours of its own
        sys.stdout, sys.stderr = Printable(out), Printable(error)
    else:
        sys.stdout, sys.stderr = out, error
    with stopping_signals() as arrived:
        try:
            code = _run([word for word in arguments if word != "--debug"], debug)
        except KeyboardInterrupt:
            print_notice("stopped; the same command resumes where it was")
            code = _STOPPED
    if code == _STOPPED and arrived:
        code = 128 + arrived[0]
    if (why := out.lost_output()) is not None:
        print_notice(f"cannot write to standard output ({why}): redirect it elsewhere")
        code = code or 2
    error.lost_output()
    sys.exit(code)


def _run(words: Sequence[str], debug: bool) -> int:
    """Run a command and return its exit code."""
    try:
        return int(app(words, standalone_mode=False) or 0)
    except Misused as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            said = error.format_message().replace("Value error, ", "").rstrip(".")
            command = error.ctx.command_path if error.ctx else "sonde"
            print_notice(f"{said}{' See' if said.endswith('?') else ': see'} `{command} --help`")
    except SondeError as error:
        if debug:
            traceback.print_exc()
        print_notice(str(error))
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG or debug:
            raise
        print_notice(files.explain_os_error(error, Path(error.filename)))
    return 2


# ── standard output, error and signals ──────────────────────────────────────────────────────────────
class Steady:
    """A stream that never raises.  It keeps the first failure and sends the rest to the null device.

    Letters that the stream's encoding lacks are written as escapes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write the text, or drop it after a failure."""
        try:
            return self.stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream; a failure is kept, not raised."""
        try:
            self.stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.failure = self.failure or error
        with suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.stream.fileno())

    def lost_output(self) -> str | None:
        """Why output was lost, or None.  A reader that closed its pipe wanted no more: that is not a loss."""
        self.flush()
        failure = self.failure
        return None if failure is None or failure.errno in _READER_GONE else failure.strerror or str(failure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Printable:
    """A stream that removes control sequences, which a terminal would obey; `unfiltered` is the stream itself."""

    def __init__(self, stream: TextIO | Steady) -> None:
        self.unfiltered = stream

    def write(self, text: str) -> int:
        """Write the text without control sequences."""
        return self.unfiltered.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def steady_streams() -> tuple[Steady, Steady]:
    """Standard output and error.  A closed one is opened on the null device, before a file can take its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            if nowhere != number:
                os.close(nowhere)
            else:
                os.set_inheritable(nowhere, True)
    streams = zip((sys.stdout, sys.stderr), (1, 2), strict=True)
    out, error = (stream or os.fdopen(number, "w", encoding="utf-8", closefd=False) for stream, number in streams)
    return Steady(out), Steady(error)


@contextmanager
def stopping_signals() -> Iterator[deque[int]]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does; yields the signals that arrived.

    A signal that was ignored when the command began stays ignored: SIGHUP after `nohup`, SIGINT in a script's job.
    """
    arrived: deque[int] = deque()

    def handle(number: int, frame: object) -> None:
        arrived.append(number)
        raise KeyboardInterrupt

    usual = signal.SIG_DFL, signal.default_int_handler
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: was for number in numbers if (was := signal.getsignal(number)) in usual}
    for number in before:
        signal.signal(number, handle)
    try:
        yield arrived
    finally:
        for number, was in before.items():
            signal.signal(number, was)
