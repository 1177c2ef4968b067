"""`diagnose(batch=)` on what loaders give and models return: experiments run, or one line says why not."""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.observe import WatchWarning

MANY = 300  # more samples than experiments use


def trained(model: nn.Module, step: Callable[[], Tensor], loss: Any = None, steps: int = 3) -> Any:
    """A watch of a few steps."""
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)
    for _ in range(steps):
        optimiser.zero_grad()
        step().backward()
        optimiser.step()
    watch.optimiser = optimiser  # it is held weakly
    return watch


def experiments(watch: Any, batch: Any) -> Any:
    found = watch.signs(batch).trials
    watch.diagnose(batch)
    watch.close()
    return found


class Language(nn.Module):
    """Returns logits and, where it is given targets, its loss; in one of several forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.embed, self.head = form, nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: Tensor, y: Tensor | None = None, labels: Tensor | None = None) -> Any:
        y = labels if y is None else y
        logits = self.head(self.embed(x))
        loss = None if y is None else functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        if self.form == "tuple":
            return logits, loss
        if self.form == "tensor":
            return logits
        if self.form == "named":
            return Named(logits, loss)
        return {"logits": logits, "loss": loss}


class Named(NamedTuple):
    logits: Tensor
    loss: Tensor | None


def tokens(many: int = 12) -> tuple[Tensor, Tensor]:
    x = torch.randint(11, (many, 5), generator=torch.Generator().manual_seed(0))
    return x, x.roll(1, 1)


def of_logits(out: Any, y: Tensor) -> Tensor:
    logits = out["logits"] if isinstance(out, dict) else out[0]
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def of_model(out: Any, y: Tensor) -> Tensor:
    loss: Tensor = out["loss"] if isinstance(out, dict) else out[1]
    return loss


@pytest.mark.parametrize("form", ["tuple", "named", "mapping"])
@pytest.mark.parametrize("many", [12, MANY])
def test_a_loss_gets_what_the_model_returns(form: str, many: int) -> None:
    torch.manual_seed(0)
    model, (x, y) = Language(form), tokens(many)
    watch = trained(model, lambda: of_logits(model(x), y), of_logits)
    found = experiments(watch, (x, y))
    assert found["samples"] == min(many, 128)
    assert found["output"]["shape"] == [min(many, 128), 5, 11]
    assert found["loss"]["trivial"] == pytest.approx(entropy(y), abs=0.1)
    assert found["loss"]["floor"] < 0.2
    if many == 12:
        wanted = of_logits(model(x), y).item()
        assert found["loss_now"] == pytest.approx(wanted, rel=1e-6)
    assert found["fits"]["1"]["steps"] > 0


def entropy(y: Tensor) -> float:
    """The loss of the best constant answer."""
    share = y.flatten().bincount(minlength=11) / y.numel()
    return float(torch.special.entr(share).sum())


@pytest.mark.parametrize("form", ["tuple", "named", "mapping", "tensor"])
def test_a_loss_gets_places_as_samples_where_the_loop_flattened_them(form: str) -> None:
    torch.manual_seed(0)
    model, (x, y), loss = Language(form), tokens(), nn.CrossEntropyLoss()

    def step() -> Tensor:
        out = model(x)
        logits = out["logits"] if form == "mapping" else out if form == "tensor" else out[0]
        return loss(logits.view(-1, 11), y.view(-1))

    watch = trained(model, step, loss)
    wanted = step().item()
    found = experiments(watch, (x, y))
    assert found["loss_now"] == pytest.approx(wanted, rel=1e-6)
    assert found["output"]["shape"] == [12, 5, 11]
    assert found["loss"]["trivial"] == pytest.approx(entropy(y), abs=0.1)
    assert found["fits"]["1"]["steps"] > 0


@pytest.mark.parametrize("form", ["tuple", "named", "mapping"])
@pytest.mark.parametrize("loss", [None, of_model])
def test_a_model_that_computes_its_loss_needs_none(form: str, loss: Any) -> None:
    torch.manual_seed(0)
    model, (x, y) = Language(form), tokens()
    watch = trained(model, lambda: of_model(model(x, y), y), loss)
    found = experiments(watch, {"x": x, "labels": y} if form == "mapping" else ((x, y), y))
    assert found["loss_now"] == pytest.approx(of_model(model(x, y), y).item(), rel=1e-6)
    assert "loss" not in found, "a loss inside the model cannot be asked about other outputs"
    assert found["fits"]["1"]["last"] < found["fits"]["1"]["first"]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_batch_of_transformers_is_taken_as_the_loader_gives_it() -> None:
    from transformers import BatchEncoding, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    x, _ = tokens()
    batch = BatchEncoding({"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x})
    watch = trained(model, lambda: model(**batch).loss)
    found = experiments(watch, batch)
    assert 1 < found["loss_now"] < 4
    assert found["fits"]["1"]["last"] < found["fits"]["1"]["first"]
    watch = trained(
        model,
        lambda: model(**batch).loss,
        lambda out, y: functional.cross_entropy(out.logits.flatten(0, 1), y.flatten()),
    )
    assert experiments(watch, (batch, x))["loss"]["floor"] < 0.2


class Graph(nn.Module):
    """Mixes the features of nodes along edges: a list of pairs, or a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.first(x).relu()
        if edges.dtype == torch.int64:
            return self.last(h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]))
        return self.last(h + edges @ h)


def edges_of(kind: str) -> Tensor:
    pairs = torch.randint(MANY, (2, 900), generator=torch.Generator().manual_seed(0))
    if kind == "pairs":
        return pairs
    matrix = torch.sparse_coo_tensor(pairs, torch.ones(900), (MANY, MANY)).coalesce()
    return matrix if kind == "sparse" else matrix.to_dense()


@pytest.mark.parametrize("kind", ["pairs", "sparse", "dense"])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_graph_is_not_cut(kind: str) -> None:
    torch.manual_seed(0)
    model, x, edges, criterion = Graph(), torch.randn(MANY, 6), edges_of(kind), nn.CrossEntropyLoss()
    y = x[:, :3].argmax(1)
    watch = trained(model, lambda: criterion(model(x, edges), y), criterion)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WatchWarning)
        found = experiments(watch, ((x, edges), y))
    assert found["loss_now"] == pytest.approx(criterion(model(x, edges), y).item(), rel=1e-6)
    assert found["output"]["shape"] == [MANY, 3]
    assert found["neighbours"]["n"] == 128
    assert "last" in found["fits"]["1"]


def test_targets_of_another_length_are_not_cut() -> None:
    """One row of targets for every token: they belong to the samples in a way that only the loss knows."""
    model, (x, y) = Language("mapping"), tokens(MANY)
    flat = y.flatten()

    def loss(out: Any, y: Tensor) -> Tensor:
        return functional.cross_entropy(out["logits"].flatten(0, 1), y)

    watch = trained(model, lambda: loss(model(x), flat), loss)
    assert experiments(watch, (x, flat))["output"]["shape"] == [MANY, 5, 11]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_with_the_older_weight_norm_is_copied() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))
    x, criterion = torch.randn(20, 6), nn.CrossEntropyLoss()
    y = x[:, :3].argmax(1)
    watch = trained(model, lambda: criterion(model(x), y), criterion)
    found = experiments(watch, (x, y))
    assert found["loss_now"] == pytest.approx(criterion(model(x), y).item(), rel=1e-6)
    assert found["fits"]["1"]["last"] < found["fits"]["1"]["first"]


def test_an_item_of_a_loader_ends_with_the_targets() -> None:
    torch.manual_seed(0)
    model, criterion = nn.Bilinear(4, 5, 3), nn.CrossEntropyLoss()
    a, b, y = torch.randn(20, 4), torch.randn(20, 5), torch.randint(3, (20,))
    watch = trained(model, lambda: criterion(model(a, b), y), criterion)
    found = experiments(watch, [a, b, y])
    assert found["loss_now"] == pytest.approx(criterion(model(a, b), y).item(), rel=1e-6)


def refused(out: Any, y: Any) -> Tensor:
    raise KeyError("logits")


@pytest.mark.parametrize("loss", [None, refused], ids=["no loss", "a loss that raises"])
def test_where_experiments_cannot_run_one_line_says_why_and_rows_are_diagnosed(loss: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    x, y = torch.randn(20, 4), torch.randint(2, (20,))
    watch = trained(model, lambda: functional.cross_entropy(model(x), y), loss)
    alone = watch.diagnose()
    with pytest.warns(WatchWarning, match="cannot run") as said:
        found = watch.diagnose((x, y))
    watch.close()
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    assert [finding.name for finding in found] == [finding.name for finding in alone]


def test_a_batch_of_another_kind_is_no_reason_to_stop() -> None:
    model, (x, y) = Language("tuple"), tokens()
    watch = trained(model, lambda: of_logits(model(x), y), of_logits)
    for batch in (x, [x], None, 3, "batch", object()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch.diagnose(batch)
    watch.close()
