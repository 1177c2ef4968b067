"""TensorBoard's event files: scalars of 32 bits, reasons as text, configurations as hparams.

The format has doubles too, but TensorBoard's data server shows none of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, DATA_CLASS_TENSOR, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.scalar import metadata as scalar
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter

from sonde.analysis.runs import run_settings
from sonde.core.run_ids import shown
from sonde.show.exporters import REASON_PREFIX, ExportProgress, Point, runs_with_rows, started, steps_of, tags
from sonde.store.files import remove_stale, set_aside
from sonde.store.run import Run, Runs

_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # normal numbers of 32 bits
_STATUS = {"complete": api_pb2.STATUS_SUCCESS, "unfinished": api_pb2.STATUS_RUNNING}
"""State of a run → status of its session; other states are failures."""


def write_events(stored: Runs, out: Path, on_progress: ExportProgress) -> list[Path]:
    """A folder for each run, `tensorboard/RUN`, with one event file."""
    paths = []
    for before in (out / "tensorboard").glob("*"):
        remove_stale(before)
    for run, rows in runs_with_rows(stored, on_progress):
        folder = out / "tensorboard" / run.id
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"events.out.tfevents.{int(started(run)):010d}.sonde"
        with set_aside(path) as (aside,), aside.open("wb") as file:
            records = RecordWriter(file)
            for event in _events(run, rows):
                event.wall_time = started(run)
                records.write(event.SerializeToString())
        paths.append(folder)
    return paths


def _events(run: Run, rows: Any) -> Iterator[Event]:
    yield Event(file_version="brain.Event:2")
    begin = plugin_data_pb2.SessionStartInfo(group_name=run.id, start_time_secs=started(run))
    for key, value in (run_settings(run) | {f"sonde.{key}": value for key, value in tags(run).items()}).items():
        _set(begin.hparams[key], value)
    yield _session(hparams.SESSION_START_INFO_TAG, session_start_info=begin)
    described: set[str] = set()
    for step, _, points in steps_of(rows):
        yield Event(step=step, summary=Summary(value=[_value(point, described) for point in points]))
    end = plugin_data_pb2.SessionEndInfo(
        status=_STATUS.get(run.manifest.state, api_pb2.STATUS_FAILURE), end_time_secs=started(run)
    )
    yield _session(hparams.SESSION_END_INFO_TAG, session_end_info=end)


def _value(point: Point, described: set[str]) -> Any:
    """A scalar, or the reason why there is none; metadata of a series is written once."""
    reason = point.reason or _misfit(point.value)
    if reason is None:
        tag, plugin, kind = point.series, scalar, DATA_CLASS_SCALAR
        value = Summary.Value(tag=tag, simple_value=point.value)
    else:
        tag, plugin, kind = f"{REASON_PREFIX}/{point.series}", text, DATA_CLASS_TENSOR
        value = Summary.Value(tag=tag, tensor=TensorProto(dtype=DT_STRING, string_val=[reason.encode()]))
    if tag not in described:
        described.add(tag)
        value.metadata.CopyFrom(plugin.create_summary_metadata(display_name="", description=""))
        value.metadata.data_class = kind
    return value


def _misfit(value: float) -> str | None:
    """Why 32 bits cannot hold a number: they would make it 0, ∞ or subnormal.  None where they can."""
    if value == 0 or _SMALLEST <= abs(value) <= _LARGEST:
        return None
    return f"{value!r} does not fit into the 32 bits of TensorBoard's scalars"


def _set(field: Any, value: Any) -> None:
    """Numbers, truths and text as they are; the rest as `--only` would write it."""
    if isinstance(value, bool):
        field.bool_value = value
    elif isinstance(value, int | float):
        field.number_value = value
    else:
        field.string_value = shown(value)


def _session(tag: str, **info: Any) -> Event:
    content = plugin_data_pb2.HParamsPluginData(version=hparams.PLUGIN_DATA_VERSION, **info)
    value = Summary.Value(tag=tag, metadata=hparams.create_summary_metadata(content), tensor=hparams.NULL_TENSOR)
    return Event(summary=Summary(value=[value]))
