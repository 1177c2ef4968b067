"""A watch leaves nothing behind, survives what programs do to models, and speaks clearly when it cannot work."""

import copy
import functools
import gc
import io
import os
import pickle
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

import sonde
from sonde.core.errors import SondeError
from sonde.observe import WatchWarning, row_writer
from watch_programs import Frozen, ResidualBlock, Transformer, plain_mlp, resnet, tokens, vectors


def hooks_on(model: nn.Module, *optimisers: torch.optim.Optimizer) -> list[str]:
    """Every hook on modules, parameters, optimisers, and on attention."""
    found = []
    for name, module in model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            found += [f"{name}.{kind}"] * len(getattr(module, kind))
    for name, parameter in model.named_parameters():
        found += [name] * len(parameter._backward_hooks or ())
        found += [name] * len(parameter._post_accumulate_grad_hooks or ())
    for optimiser in optimisers:
        found += ["pre"] * len(optimiser._optimizer_step_pre_hooks)
        found += ["post"] * len(optimiser._optimizer_step_post_hooks)
    attention = nn.functional.scaled_dot_product_attention
    return found + ["attention"] * (attention is not torch._C._nn.scaled_dot_product_attention)


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = plain_mlp()
    return model, torch.optim.SGD(model.parameters(), 0.1)


def train(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int = 1) -> None:
    for step in range(steps):
        optimiser.zero_grad()
        model(vectors(step)[0]).square().mean().backward()
        optimiser.step()


@pytest.mark.parametrize("steps", [0, 1, 5, 12])
@pytest.mark.parametrize("with_optimiser", [True, False])
def test_after_close_no_hook_is_left(steps: int, with_optimiser: bool) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, *([optimiser] if with_optimiser else []), runs=None)
    train(model, optimiser, steps)
    assert hooks_on(model, optimiser)
    watch.close()
    assert not hooks_on(model, optimiser)
    watch.close()
    train(model, optimiser)


def test_in_steps_that_are_not_watched_modules_have_no_hooks() -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser, 12)
    assert hooks_on(model, optimiser) == ["post"]
    watch.close()


def test_after_garbage_collection_no_hook_is_left() -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser, 3)
    del watch
    gc.collect()
    assert not hooks_on(model, optimiser)


def test_a_watch_does_not_keep_a_model_alive() -> None:
    model, optimiser = made()
    gone = weakref.ref(model)
    watch = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser, 3)
    del model, optimiser
    gc.collect()
    assert gone() is None
    assert watch.rows.height > 0
    watch.close()


def test_after_an_exception_in_a_with_block_no_hook_is_left_and_the_run_says_why(tmp_path: Path) -> None:
    model, optimiser = made()

    def loop() -> None:
        with sonde.watch(model, optimiser, runs=tmp_path):
            train(model, optimiser, 2)
            raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError):
        loop()
    assert not hooks_on(model, optimiser)
    run = sonde.load(tmp_path).watched[0]
    assert (run.manifest.state, run.manifest.message) == ("failed", "ZeroDivisionError: in the loop")


def test_after_an_exception_leaves_the_function_that_holds_it_no_hook_is_left() -> None:
    model, optimiser = made()

    def loop() -> None:
        watch = sonde.watch(model, optimiser, runs=None)
        train(model, optimiser, 2)
        assert watch.step == 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    gc.collect()
    assert not hooks_on(model, optimiser)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_inside_a_module_is_the_users_own_and_the_next_step_is_read(
    kind: type[BaseException],
) -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.fails = nn.Linear(12, 12), False

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            if self.fails:
                raise kind("mine")
            return out

    moody = Moody()
    model = nn.Sequential(nn.Linear(12, 12), moody, nn.Linear(12, 4))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    moody.fails = True
    with pytest.raises(kind, match="mine"):
        model(1000 * vectors(0)[0])
    moody.fails = False
    out = model(vectors(0)[0])
    out.square().mean().backward()
    optimiser.step()
    found = watch.rows.filter(module="2", metric="out_rms", step=0)
    assert found["value"].item() == pytest.approx(float(out.detach().double().square().mean().sqrt()), rel=1e-5)
    watch.close()


def test_watching_again_replaces_the_old_watch() -> None:
    model, optimiser = made()
    first = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser, 2)
    second = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser, 3)
    assert (first.step, second.step) == (2, 3)
    second.close()
    assert not hooks_on(model, optimiser)


def test_a_watch_that_nobody_keeps_says_so() -> None:
    model, optimiser = made()
    with pytest.warns(WatchWarning, match="keep it in a variable"):
        sonde.watch(model, optimiser, runs=None)
    assert not hooks_on(model, optimiser)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_watched_model_is_not_watched(copied: Callable[[nn.Module], nn.Module]) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    twin = copied(model)
    twin(vectors(0)[0]).sum().backward()
    assert not hooks_on(twin)
    train(model, optimiser, 2)
    assert watch.step == 2
    watch.close()


def test_a_state_dict_and_a_file_of_weights_hold_nothing_of_a_watch() -> None:
    model, optimiser = made()
    names = list(model.state_dict())
    watch = sonde.watch(model, optimiser, runs=None)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, buffer)
    assert list(model.state_dict()) == names
    watch.close()


def test_what_goes_wrong_in_the_watch_is_one_warning_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, optimiser = made()

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("a mistake of ours")

    watch = sonde.watch(model, optimiser, runs=None)
    monkeypatch.setattr("sonde.metrics.reductions.norms", broken)
    with pytest.warns(WatchWarning, match="gave up in step 0.*a mistake of ours") as said:
        train(model, optimiser, 3)
    assert len(said) == 1
    assert not hooks_on(model, optimiser)
    assert watch.rows.is_empty()


def test_a_warning_never_becomes_an_exception_in_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    monkeypatch.setattr("sonde.metrics.reductions.norms", lambda x: 1 / 0)
    train(model, optimiser, 2)  # warnings are errors in these tests
    assert "gave up" in capsys.readouterr().err
    watch.close()


def test_a_store_that_cannot_be_written_any_more_is_one_warning_and_nothing_written_is_lost(
    tmp_path: Path,
) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=tmp_path / "runs", every=1)
    train(model, optimiser, 20)
    before = watch.rows
    folder = tmp_path / "runs" / watch.id
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    with pytest.warns(WatchWarning, match="cannot write any more") as said:
        train(model, optimiser, 20)
    watch.close()
    assert len(said) == 1
    assert watch.step == 40
    folder.unlink()
    (tmp_path / "away").rename(folder)
    stored = sonde.load(tmp_path / "runs").rows
    assert stored.select(before.columns).equals(before)
    assert watch.rows["step"].max() == 39, "what follows is in memory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_without_permission_is_an_error_before_training(tmp_path: Path) -> None:
    model, optimiser = made()
    tmp_path.chmod(0o500)
    with pytest.raises(SondeError, match="permission"):
        sonde.watch(model, optimiser, runs=tmp_path / "runs")


def test_a_store_that_is_a_file_is_an_error_before_training(tmp_path: Path) -> None:
    model, optimiser = made()
    (tmp_path / "runs").write_text("")
    with pytest.raises(SondeError, match="is a file: name a folder"):
        sonde.watch(model, optimiser, runs=tmp_path / "runs")
    assert not hooks_on(model, optimiser)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no parameters": (lambda: sonde.watch(nn.Sequential(nn.ReLU()), runs=None), "has no parameters"),
    "no model": (lambda: sonde.watch("model", runs=None), "expected a torch.nn.Module, got str"),
    "another model's optimiser": (
        lambda: sonde.watch(plain_mlp(), torch.optim.SGD(plain_mlp().parameters(), 0.1), runs=None),
        "SGD holds no parameter of this Sequential",
    ),
    "not an optimiser": (
        lambda: sonde.watch(plain_mlp(), object(), runs=None),
        "object is not a torch.optim.Optimizer",
    ),
    "a list of optimisers": (
        lambda: sonde.watch(plain_mlp(), [torch.optim.SGD(plain_mlp().parameters(), 0.1)], runs=None),
        "one by one",
    ),
    "a loss in place of an optimiser": (lambda: sonde.watch(plain_mlp(), nn.MSELoss(), runs=None), "pass loss="),
    "a loss that cannot be called": (
        lambda: sonde.watch(plain_mlp(), loss="mse", runs=None),
        "loss module or a function",
    ),
    "a pattern without a match": (
        lambda: sonde.watch(resnet(), layers="1.conv3", runs=None),
        "no module matches '1.conv3'; did you mean '1.conv2' or",
    ),
    "every": (
        lambda: sonde.watch(plain_mlp(), every=0, runs=None),
        "every=0: expected a whole number of steps",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_one_line_before_training(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(SondeError) as told:
        call()
    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_layers_by_pattern_and_by_function() -> None:
    for layers in ("1.*", ["1.conv?", "1.norm*", "1.act"], lambda name, module: name.startswith("1.")):
        model = resnet()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        watch = sonde.watch(model, optimiser, layers=layers, runs=None)
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        optimiser.step()
        names = watch.rows.filter(metric="out_rms")["module"].to_list()
        assert names == ["1.conv1", "1.norm1", "1.act", "1.conv2", "1.norm2", "1.act#2"]
        watch.close()


def test_by_default_blocks_activations_and_modules_with_parameters_are_watched() -> None:
    model = resnet()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8)).sum().backward()
        optimiser.step()
    for step in range(2):
        names = watch.rows.filter(metric="out_rms", step=step)["module"].to_list()
        assert {"0.0", "0.1", "0.2", "1", "2", "1.act", "5"} <= set(names)
        assert not {"3", "4"} & set(names), "pooling and flattening change the shape and have no parameters"
    assert isinstance(model[1], ResidualBlock)
    assert watch.rows.filter(module="1", metric="stream_step")["defined"].all()
    watch.close()


def test_where_pytorch_has_a_faster_way_without_hooks_there_are_none() -> None:
    model = Frozen().train()
    optimiser = torch.optim.SGD(model.head.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    assert not hooks_on(model.encoder.layers[0])
    model(tokens(0)[0]).sum().backward()
    optimiser.step()
    unseen = {module["name"]: module.get("reason", "") for module in watch.facts["modules"]}
    assert "frozen and in eval mode" in unseen["encoder.layers.0.linear1"]
    watch.close()


def test_an_evaluation_of_a_transformer_goes_the_faster_way_and_the_next_step_is_read() -> None:
    class Spy(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(hooks_on(model.encoder)))
            return super().forward(x)  # the faster way does without it

    seen: list[int] = []
    model = Transformer()
    model.encoder.layers[0].activation = Spy()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            model(tokens(0)[0])
        model.train()
        model(tokens(0)[0]).sum().backward()
        optimiser.step()
    assert len(seen) == 2
    assert min(seen) > 0
    assert watch.rows.filter(metric="out_rms", module="head")["step"].to_list() == [0, 1]
    watch.close()


def test_memory_does_not_grow_with_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.observe.row_writer.MOST_ROWS_IN_MEMORY", 2_000)
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None, every=1)
    heights = []
    for _ in range(12):
        train(model, optimiser, 20)
        heights.append(watch.rows.height)
    assert max(heights) <= 2_000 + row_writer.WAITING_ROWS + 200
    steps = watch.rows["step"].unique().to_list()
    assert set(range(10)) <= set(steps)
    assert max(steps) > 200
    watch.close()


def test_a_call_in_another_thread_is_left_alone() -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    train(model, optimiser)
    other = threading.Thread(target=lambda: model(1000 * vectors(0)[0]))
    other.start()
    other.join()
    train(model, optimiser)
    assert watch.rows.filter(module="4", metric="out_rms")["value"].max() < 10
    watch.close()


def test_functions_of_torch_func_are_left_alone() -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=None)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, vectors(0)[0])
    train(model, optimiser)
    assert watch.step == 1
    assert watch.rows.filter(metric="out_rms")["samples"].unique().to_list() == [10]
    watch.close()


def test_a_thousand_modules_are_watched() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(1000)))
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    watch = sonde.watch(model, optimiser, runs=None)
    model(torch.randn(2, 4)).sum().backward()
    optimiser.step()
    assert watch.rows.filter(metric="grad_rms")["module"].n_unique() == 1001
    watch.close()


def test_a_forked_child_does_not_touch_the_journal(tmp_path: Path) -> None:
    model, optimiser = made()
    watch = sonde.watch(model, optimiser, runs=tmp_path)
    train(model, optimiser, 2)
    folder = tmp_path / watch.id
    before = {file.name: file.stat().st_size for file in folder.iterdir()}
    watch._recorder._process += 1  # as a child sees it
    watch.close()
    assert {file.name: file.stat().st_size for file in folder.iterdir()} == before
    watch._recorder._process -= 1
    watch.close()
    assert sonde.load(tmp_path).watched[0].manifest.state == "complete"


def test_rows_have_one_schema_in_memory_and_in_the_store(tmp_path: Path) -> None:
    frames = []
    for runs in (None, tmp_path):
        model, optimiser = made()
        watch = functools.partial(sonde.watch, name="same")(model, optimiser, runs=runs)
        train(model, optimiser, 3)
        frames.append(watch.rows.drop("run"))
        watch.close()
        frames.append(watch.rows.drop("run"))
    assert all(frame.equals(frames[0]) for frame in frames)
    assert frames[0].schema["module"] == pl.String
