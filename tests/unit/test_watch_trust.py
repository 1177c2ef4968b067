"""What a watch must bear: lazy and TorchScript modules, odd losses, long evaluations, a full disk, secrets."""

import json
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from test_watch_hygiene import hooks_on, made, train
from torch import nn

import sonde
from processes import wait_for
from sonde.core.errors import SondeError
from sonde.observe import WatchWarning, row_writer
from sonde.store.journal import Journal, read_watched
from watch_programs import vectors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), nn.Linear(4, 2))


def traced() -> nn.Module:
    return nn.Sequential(torch.jit.trace(nn.Linear(3, 4), torch.randn(2, 3)), nn.Linear(4, 2))


@pytest.mark.parametrize("with_optimiser", [True, False])
@pytest.mark.parametrize("make", [lazy, scripted, traced])
def test_lazy_and_torchscript_modules_can_be_watched(make: Callable[[], nn.Module], with_optimiser: bool) -> None:
    model = make()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, *[optimiser] * with_optimiser, runs=None)
    for _ in range(4):
        optimiser.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimiser.step()
    assert watch.step >= 3
    rows = watch.rows
    last = rows.filter(pl.col("metric") == "grad_rms", pl.col("defined"))["module"].to_list()
    assert ("2" if make is lazy else "1") in last
    if make is lazy:
        assert "0" in last, "a parameter is read once it has a shape"
    else:
        told = {module["name"]: module.get("reason") for module in watch.facts["modules"]}
        assert "TorchScript" in str(told["0"])
    watch.close()
    assert hooks_on(nn.ModuleList([model[1:]]), optimiser) == []
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_model_that_is_torchscript_as_a_whole_is_watched_from_outside() -> None:
    model = torch.jit.script(nn.Linear(3, 2))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(WatchWarning, match="TorchScript"):
        watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(2):
        model(torch.randn(5, 3)).square().mean().backward()
        optimiser.step()
    assert watch.step == 2
    assert {"weight", "bias"} <= set(watch.rows["module"])
    watch.close()
    assert not optimiser._optimizer_step_post_hooks


def test_a_watch_that_cannot_begin_leaves_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimiser = made()

    def broken(*args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(torch.optim.SGD, "register_step_pre_hook", broken)
    with pytest.warns(WatchWarning, match="gave up"):
        watch = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser)
    assert hooks_on(model, optimiser) == []
    watch.close()


@pytest.mark.parametrize(
    ("loss", "value"), [(torch.tensor(3), 3.0), (torch.tensor([1, 2]), 1.5), (torch.tensor(True), 1.0)]
)
def test_a_loss_of_whole_numbers_is_recorded(loss: torch.Tensor, value: float) -> None:
    model, optimiser = made()
    with sonde.watch(model, optimiser, runs=None) as watch:
        for _ in range(2):
            model(vectors(0)[0]).square().mean().backward()
            watch.log(loss)
            optimiser.step()
        assert watch.rows.filter(metric="loss")["value"].to_list() == [value] * 2


def test_meta_tensors_do_not_end_the_watch() -> None:
    model, optimiser = made()
    with sonde.watch(model, optimiser, runs=None) as watch:
        with pytest.warns(WatchWarning, match="meta"):
            watch.log(torch.zeros((), device="meta"))
        train(model, optimiser, 2)
        assert watch.step == 2
        assert watch.rows.filter(metric="loss").height == 0
    on_meta = nn.Linear(3, 2, device="meta")
    with sonde.watch(on_meta, runs=None) as watch:
        for _ in range(3):
            on_meta(torch.zeros(4, 3, device="meta")).sum().backward()
        assert watch.step == 2
        outputs = watch.rows.filter(metric="out_rms")
        assert outputs.height
        assert not outputs["defined"].any()


def test_rows_reach_the_disk_while_no_step_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writer, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(row_writer, "WAITING_SECONDS", 0.05)
    monkeypatch.setattr(row_writer, "WAITING_ROWS", 10**9)
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=tmp_path)
    train(model, optimiser, 5)

    def on_disk() -> int:
        rows = read_watched(tmp_path / watch.id)[1]
        return rows["step"].n_unique()

    wait_for(lambda: on_disk() == 5)  # an evaluation, in which no step ends
    manifest = tmp_path / watch.id / "manifest.json"
    size = (tmp_path / watch.id / "journal-0001.chunks").stat().st_size
    wait_for(lambda: json.loads(manifest.read_text())["checksums"]["journal-0001.chunks"]["bytes"] == size)
    train(model, optimiser, 3)
    watch.close()
    assert watch.rows.filter(metric="grad_norm")["step"].n_unique() == 8 or on_disk() == 8
    assert not any(thread.name == "sonde.watch" and thread.is_alive() for thread in _settled())


def _settled() -> list[threading.Thread]:
    for thread in threading.enumerate():
        if thread.name == "sonde.watch":
            thread.join()
    return threading.enumerate()


def test_after_a_full_disk_close_writes_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=tmp_path)
    train(model, optimiser, 2)

    def full(*args: object) -> None:
        raise SondeError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "append", full)
        broken.setattr(Journal, "write_facts", full)
        broken.setattr(row_writer, "WAITING_ROWS", 1)
        with pytest.warns(WatchWarning, match="cannot write"):
            train(model, optimiser, 3)
        kept = watch.rows
    watch.close()
    manifest, stored = read_watched(tmp_path / watch.id)
    assert manifest.state == "complete"
    assert stored.equals(kept)
    assert watch.rows.equals(kept)
    assert sorted(set(stored["step"])) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("asked", [False, True])
def test_arguments_and_host_are_stored_only_if_asked_for(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--api-key", "s3cret"])
    monkeypatch.setattr(platform, "node", lambda: "our-machine")
    model, optimiser = made()
    with sonde.watch(model, optimiser, runs=tmp_path, **({"provenance": True} if asked else {})) as watch:
        train(model, optimiser, 2)
    stored = "".join(path.read_bytes().decode(errors="replace") for path in (tmp_path / watch.id).iterdir())
    assert ("s3cret" in stored, "our-machine" in stored) == (asked, asked)
    assert "train.py" in stored
    assert "/home/me" not in stored
