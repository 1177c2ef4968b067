"""The callbacks, in the real libraries where those are installed."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sonde
from watch_programs import plain_mlp

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that are not ours


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed: pip install -e '.[test-watch]'",
    )


def loader(batches: int) -> DataLoader[Any]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(8 * batches, 12, generator=rng)
    return DataLoader(TensorDataset(x, torch.randint(4, (8 * batches,), generator=rng)), 8)


@needs("lightning")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning_trains_the_same_bits_and_every_step_is_seen(accumulate: int, tmp_path: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from sonde.observe.lightning import WatchCallback

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_mlp()
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.net(100 * batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def fit(*callbacks: Any) -> Lit:
        torch.manual_seed(0)
        model = Lit()
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=accumulate,
            callbacks=list(callbacks),
        )
        trainer.fit(model, loader(12), loader(2))
        return model

    plain = fit()
    callback = WatchCallback(runs=tmp_path)
    watched = fit(callback)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert callback.watch is not None
    assert callback.watch.step == 12 // accumulate
    rows = sonde.load(tmp_path).rows
    steps = min(10, 12 // accumulate)
    outputs = rows.filter((pl.col("module") == "net.0") & (pl.col("metric") == "out_rms"))
    assert outputs["step"].to_list() == list(range(steps))
    assert outputs["samples"].unique().to_list() == [8 * accumulate], "validation is not part of it"
    losses = rows.filter(metric="loss").sort("step")
    assert losses["step"].to_list() == list(range(12 // accumulate))
    of_steps = torch.tensor(watched.losses).view(-1, accumulate).mean(1).tolist()
    assert losses["value"].to_list() == pytest.approx(of_steps)
    for metric in ("weight_grad_norm", "update_ratio"):
        assert rows.filter(metric=metric)["defined"].all()
    assert not any(module._forward_hooks for module in watched.modules())


@needs("transformers")
@needs("accelerate")
def test_transformers_trains_the_same_bits_and_the_loss_is_read_off_the_models_output(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from sonde.observe.transformers import WatchCallback

    tokens = torch.randint(40, (48, 10), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    def train(*callbacks: Any) -> Any:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)
        model = GPT2LMHeadModel(config)
        arguments = TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            learning_rate=1e-3,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=list(callbacks)).train()
        return model

    plain = train()
    callback = WatchCallback(runs=tmp_path / "runs")
    watched = train(callback)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert callback.watch is not None
    assert callback.watch.step == 12
    rows = sonde.load(tmp_path / "runs").rows
    losses = rows.filter(metric="loss")
    assert losses["step"].to_list() == list(range(10))
    assert losses["value"].is_between(1, 6).all()
    attention = rows.filter(metric="attention_entropy", step=0)["module"].to_list()
    assert attention == ["transformer.h.0.attn", "transformer.h.1.attn"]
    blocks = rows.filter(metric="stream_step", step=0, module="transformer.h.0")
    assert blocks["defined"].all()
    assert blocks["samples"].to_list() == [8]
    assert rows.filter(metric="update_ratio").filter(~pl.col("defined"))["reason"].unique().to_list() in (
        [],
        ["the weight is zero"],
    )


@needs("lightning")
def test_lightning_callback_takes_a_loss_for_experiments() -> None:
    from lightning.pytorch import LightningModule, Trainer

    from sonde.observe.lightning import WatchCallback

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = plain_mlp(), nn.CrossEntropyLoss()

        def forward(self, x: Tensor) -> Any:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return self.criterion(self(x), y) + 1.0

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    torch.manual_seed(0)
    model = Lit()
    callback = WatchCallback(runs=None, loss=model.criterion)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet)  # type: ignore[arg-type]
    batches = loader(12)
    trainer.fit(model, batches)
    assert callback.watch is not None
    found = callback.watch.signs(next(iter(batches))).trials
    assert found is not None
    x, y = next(iter(batches))
    assert found["loss_now"] == pytest.approx(model.criterion(model(x), y).item(), rel=1e-5)
    assert found["fits"]["1"]["last"] < found["fits"]["1"]["first"]
    recorded = callback.watch.rows.filter(metric="loss")
    assert recorded.height == 12
    assert recorded["value"].min() > 2, "what training_step returns, in every step"


@needs("transformers")
@needs("accelerate")
@pytest.mark.parametrize("shared_out", [True, False])
def test_transformers_loss_is_that_of_all_micro_batches(shared_out: bool, tmp_path: Path) -> None:
    """With `num_items_in_batch` each micro-batch is divided by the tokens of all; without, by its own."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from sonde.observe.transformers import WatchCallback

    class Own(GPT2LMHeadModel):
        accepts_loss_kwargs = shared_out

    tokens = torch.randint(40, (48, 10), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    for place, row in enumerate(labels):
        row[2 + place % 7 :] = -100  # micro-batches of different numbers of tokens
    data = [{"input_ids": row, "labels": told} for row, told in zip(tokens, labels, strict=True)]
    torch.manual_seed(0)
    model = Own(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=5,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = WatchCallback(runs=None, loss=of_logits)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert callback.watch is not None
    losses = callback.watch.rows.filter(metric="loss").sort("step")
    assert losses["samples"].to_list() == [4] * 5
    assert losses["value"].to_list() == pytest.approx(logged, abs=2e-4)
    assert min(logged) > 2, "not a quarter"
    found = callback.watch.signs(({"input_ids": tokens}, tokens)).trials
    assert found is not None
    assert found["loss"]["floor"] < 0.2 < found["loss"]["trivial"]


def of_logits(out: Any, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.logits.flatten(0, 1), y.flatten())


@needs("accelerate")
def test_accelerate_needs_nothing_but_the_line(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = plain_mlp()
    model, optimiser, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader(5))
    criterion = nn.CrossEntropyLoss()
    with sonde.watch(model, optimiser, loss=criterion, runs=tmp_path, scaler=accelerator.scaler) as watch:
        for x, y in batches:
            optimiser.zero_grad()
            accelerator.backward(criterion(model(x), y))
            optimiser.step()
    assert watch.step == 5
    assert watch.rows.filter(metric="loss")["step"].to_list() == list(range(5))


@pytest.mark.parametrize(
    ("package", "module"),
    [
        ("lightning.pytorch", "sonde.observe.lightning"),
        ("transformers", "sonde.observe.transformers"),
    ],
)
def test_without_the_library_a_callback_says_how_to_get_it(
    package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from sonde.core.errors import SondeError

    for name in [name for name in sys.modules if name.split(".")[0] == package.split(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with warnings.catch_warnings(), pytest.raises(SondeError, match=r"pip install 'sonde\["):
        importlib.import_module(module)
