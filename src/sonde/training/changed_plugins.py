"""A run goes on with the code it began with: a plugin's changed file is noticed before anything is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from sonde.config import RunConfig, to_tree
from sonde.core.errors import SondeError
from sonde.plugins.source import Source
from sonde.store.listing import present_runs
from sonde.store.place import Place
from sonde.store.run import ENDED, RunFolder


def refuse_changed(configs: Sequence[RunConfig], runs: Place) -> None:
    """Raise where the store has an unfinished run that differs in nothing but the content of a plugin's file."""
    with_plugins = [config for config in configs if config.sources]
    present = present_runs(runs) if with_plugins else []
    for config in with_plugins:
        begins = config.id.rpartition("-")[0] + "-"
        for id in present:
            if id.startswith(begins) and id != config.id:
                _compare(config, RunFolder(runs / id))


def _compare(config: RunConfig, folder: RunFolder) -> None:
    manifest = folder.manifest()
    if manifest.state in ENDED:
        return
    ours, theirs = to_tree(config), folder.description()["config"]
    stamps, before = _stamps(ours), _stamps(theirs)
    if stamps.keys() != before.keys() or _without_stamps(ours) != _without_stamps(theirs):
        return
    file = next(where for where, stamp in stamps.items() if before[where] != stamp)
    source = Source.parse(file)
    kept = f"put back {folder.path / source.where}" if source.is_file else "put the first one back"
    where = "" if manifest.epoch is None else f", which stands at epoch {manifest.epoch} of {config.epochs}"
    raise SondeError(
        f"{source.where} has changed since run {folder.id} began{where}: {kept} to finish it, or move {folder.path} "
        "away to train with the file as it is now"
    )


def _texts(tree: Mapping[str, Any]) -> list[str]:
    chosen = [section["source"] for section in tree.values() if isinstance(section, dict) and "source" in section]
    probes = tree["probes"]
    return chosen + [name for name in (*probes["names"], *probes["costly"]) if "@" in name]


def _stamps(tree: Mapping[str, Any]) -> dict[str, str | None]:
    """By plugin, the stamp of its file."""
    return {text.partition("@")[0]: Source.parse(text).stamp for text in _texts(tree)}


def _without_stamps(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_stamps(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_stamps(inner) for inner in value]
    return value.partition("@")[0] if isinstance(value, str) else value
