"""`sonde.chain`: the units of ordinary modules, checked, and nothing left behind."""

import copy
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sonde
from plain_modules import GUESTS, Guest, N, T, ViT, images, sequential, words
from sonde.core.errors import SondeError
from sonde.metrics.probes import Context, take
from sonde.rules import DirectFeedback, FeedbackAlignment
from sonde.training.credit_assignment import CreditAssignment


def everything(module: nn.Module) -> dict[str, object]:
    """All that must stay: values, identities, modes, hooks, generators."""
    return {
        "values": {name: value.clone() for name, value in module.state_dict().items()},
        "identities": [id(p) for p in module.parameters()] + [id(b) for b in module.buffers()],
        "modes": [m.training for m in module.modules()],
        "attributes": [sorted(m.__dict__) for m in module.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()],
        "gradients": [p.grad for p in module.parameters()],
        "needed": [p.requires_grad for p in module.parameters()],
        "generator": torch.get_rng_state(),
    }


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    for key, value in before.items():
        other = after[key]
        if isinstance(value, dict):
            assert isinstance(other, dict)
            assert all(torch.equal(v, other[name]) for name, v in value.items()), key
        elif isinstance(value, Tensor):
            assert torch.equal(value, other), key  # type: ignore[arg-type]
        else:
            assert value == other, key


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
@pytest.mark.parametrize("name", [*GUESTS, "vit with dropout"])
def test_it_leaves_the_module_and_the_generators_as_they_were(name: str, mode: str) -> None:
    guest = GUESTS.get(name) or Guest(lambda: ViT(dropout=0.5), images, ["encoder.layers.*"])
    module, (x, y) = guest.build().train(mode != "eval"), guest.batch()
    if mode == "mixed":
        next(module.children()).eval()
    before = everything(module)
    net = sonde.chain(module, units=guest.units, sample=x)
    assert_same(before, everything(module))
    assignment = CreditAssignment(net, DirectFeedback(), sample=x)
    take(net, x, y, assignment.loss, Context(credits=assignment.credits))
    assert_same(before, everything(module))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GUESTS)
def test_units_one_after_the_other_give_the_module_s_own_output(name: str, dtype: torch.dtype) -> None:
    guest = GUESTS[name]
    net, (x, _) = guest.chain().to(dtype).eval(), guest.batch()
    x = x.to(dtype) if x.is_floating_point() else x
    with torch.no_grad():
        own = net.module(x)
        states, output = net.states(x)
        h = states[0]
        for layer in range(net.depth):
            assert torch.equal(net.tail(h, layer, x).output, own)
            h = net.advance(h, layer, x)
        assert torch.equal(output, own)
        assert torch.equal(net.tail(h, net.depth, x).output, own)
        twice = net.tail(torch.cat([h, h]), net.depth, x).output
        torch.testing.assert_close(twice, torch.cat([own, own]))


def test_parameters_keep_the_names_the_module_gives_them() -> None:
    net = GUESTS["gpt"].chain()
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in net.module.named_parameters()]
    assert net.state_dict().keys() == net.module.state_dict().keys()
    net.load_state_dict(net.module.state_dict())
    assert [p is q for p, q in zip(net.parameters(), net.module.parameters(), strict=True)]


def test_of_a_sequence_a_unit_begins_at_each_weight_matrix() -> None:
    assert sonde.chain(sequential()).spans == [("3", "4"), ("5", "6")]
    assert sonde.chain(sequential(), readout="5").spans == [("3", "4")]
    assert sonde.chain(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))).spans == [("0", "1")]
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 4),
    )
    net = sonde.chain(conv, sample=images()[0])
    assert net.spans == [("3", "5")]
    with torch.no_grad():
        assert [tuple(h.shape) for h in net.states(images()[0])[0]] == [(N, 3, 6, 6), (N, 64)]


class Between(nn.Module):
    """Something stands between its units, or goes around them."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.norm, self.drop, self.unused = nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.layers[0](x)
        b = self.layers[1](a)
        b = {"norm": self.norm, "drop": self.drop}.get(self.what, nn.Identity())(b)
        c = self.layers[2](b)
        if self.what == "twice":
            c = self.layers[2](c)
        if self.what == "around":
            c = c + a
        return self.layers[3](c)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("what", "units", "message"),
    [
        (
            "norm",
            ["layers.*"],
            r"the input of unit 'layers\.2' is not the output of unit 'layers\.1': .* part",
        ),
        ("drop", ["layers.*"], r"the input of unit 'layers\.2' is not the output of unit 'layers\.1'"),
        ("twice", ["layers.*"], r"unit 'layers\.2' runs when unit 'layers\.3' should: .* each of them once"),
        ("plain", ["layers.1", "layers.0"], r"unit 'layers\.0' runs when unit 'layers\.1' should: .*order"),
        (
            "plain",
            ["layers.0", "layers.2"],
            r"the input of unit 'layers\.2' is not the output of unit 'layers\.0'",
        ),
        (
            "around",
            ["layers.1", "layers.2"],
            r"the output depends on the input of unit 'layers\.1' by a way around the units: .* no chain",
        ),
        (
            "around",
            ["layers.0", "layers.1", "layers.2"],
            r"given the input of the readout alone, the output is off by .* no chain",
        ),
        ("plain", ["layers.3", "unused"], r"unit 'unused' does not run when the module does"),
        ("plain", ["layers"], r"unit 'layers' does not run when the module does"),
        ("plain", ["layer.*"], r"Between has no submodule 'layer\.\*': did you mean 'layers\.3'"),
        ("plain", ["layers", "layers.*"], r"unit 'layers\.0' is a part of unit 'layers': name one of them"),
        ("plain", [], r"at least one unit"),
        ("plain", None, r"Between is no nn\.Sequential: name the units, such as units=\['layers\.\*'\]"),
    ],
)
def test_units_that_are_no_chain_are_refused_by_the_name_of_the_first_that_is_not(
    what: str, units: list[str] | None, message: str
) -> None:
    module, x = Between(what), torch.randn(5, 8)
    before = everything(module)
    with pytest.raises(SondeError, match=message):
        sonde.chain(module, units, sample=x)
    assert_same(before, everything(module))


def test_without_a_sample_the_first_batch_that_is_seen_is_the_check() -> None:
    net = sonde.chain(Between("norm"), ["layers.*"])
    with pytest.raises(SondeError, match="is not the output of"):
        CreditAssignment(net, DirectFeedback(), sample=torch.randn(5, 8))
    with pytest.raises(SondeError, match="is not the output of"):
        take(net, torch.randn(5, 8), torch.zeros(5, dtype=torch.long), nn.CrossEntropyLoss())


def test_the_readout_may_be_named_or_be_a_function() -> None:
    x, y = images()
    module = GUESTS["convnet"].build()
    sonde.chain(module, ["stages.*"], readout="fc", sample=x)
    with pytest.raises(SondeError, match=r"readout 'stem' runs before the last unit"):
        sonde.chain(module, ["stages.*"], readout="stem", sample=x)
    with pytest.raises(SondeError, match=r"no submodule 'head'"):
        sonde.chain(module, ["stages.*"], readout="head", sample=x)
    returns_more = Returning(module)
    with pytest.raises(SondeError, match=r"returns a dict: say by readout=lambda out"):
        sonde.chain(returns_more, ["module.stages.*"], sample=x)
    net = sonde.chain(returns_more, ["module.stages.*"], readout=lambda out: out["scores"], sample=x)
    assert take(net, x, y, nn.CrossEntropyLoss()).output_NC.shape == (N, 4)


class Returning(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.module(x)}


def test_a_step_that_fails_leaves_no_watch_on_the_module() -> None:
    net, x = GUESTS["convnet"].chain(), torch.randn(2, 7, 8, 8)
    before = everything(net.module)
    with pytest.raises(RuntimeError):
        net.run(x)
    assert_same(before, everything(net.module))


@pytest.mark.parametrize("rule", [DirectFeedback(), FeedbackAlignment()])
def test_a_step_through_a_chain_leaves_no_graph_behind(rule: object) -> None:
    net, (x, y) = GUESTS["convnet"].chain(), images()
    assignment = CreditAssignment(net, rule, sample=x)  # type: ignore[arg-type]
    kept: list[weakref.ref[Tensor]] = []
    net.module.fc.register_forward_hook(lambda _m, inputs, _out: kept.append(weakref.ref(inputs[0])))  # type: ignore[union-attr]
    gc.collect()
    gc.disable()
    try:
        assignment.backward(x, y)
        assert kept
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


def test_tied_weights_get_the_gradient_of_embedding_and_readout() -> None:
    """Under DFA: what the word embedding gets from a_0 plus what the head gets from the loss."""
    net, (x, y) = GUESTS["gpt"].chain().double(), words()
    rule = DirectFeedback(credit_scale="none")
    assignment = CreditAssignment(net, rule, sample=x)
    module = copy.deepcopy(net.module)
    assignment.backward(x, y)
    with torch.no_grad():
        states, output = net.states(x)
    error = assignment.loss.error(output, y)
    a_0 = error @ assignment.state.matrices[0].T / N  # type: ignore[attr-defined]
    words_only = torch.zeros_like(module.wte.weight).index_add(0, x.flatten(), a_0.flatten(0, 1))  # type: ignore[union-attr, arg-type]
    top = module.ln_f(states[-1])  # type: ignore[operator]
    head_only = torch.einsum("ntv,ntd->vd", error / N, top)
    torch.testing.assert_close(net.module.wte.weight.grad, words_only + head_only, rtol=1e-10, atol=1e-14)  # type: ignore[union-attr]


def test_a_snapshot_s_moved_copies_are_told_what_their_own_sample_is_told() -> None:
    """The bias of a unit differs from sample to sample; copies of a batch stand one after the other."""
    net, (x, _) = GUESTS["gpt"].chain().double().eval(), words()
    with torch.no_grad():
        states, _ = net.states(x)
        moved = torch.stack([states[1] * factor for factor in (1.0, 1.1, 0.9)])
        together = net.tail(moved.flatten(0, 1), 1, x).output.view(3, N, T, -1)
        for k in range(3):
            torch.testing.assert_close(together[k], net.tail(moved[k], 1, x).output)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        ("GPT2LMHeadModel", (N, T)),
        ("BertForSequenceClassification", (N, T)),
        ("ViTForImageClassification", (N, 3, 8, 8)),
    ],
)
def test_a_model_of_transformers_is_a_chain(module: str, shape: tuple[int, ...]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    small = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    make: dict[str, Callable[[], object]] = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            vocab_size=11, n_positions=T, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.1
        ),
        "BertForSequenceClassification": lambda: transformers.BertConfig(
            **small, vocab_size=11, max_position_embeddings=T, num_labels=4
        ),
        "ViTForImageClassification": lambda: transformers.ViTConfig(**small, image_size=8, patch_size=4, num_labels=4),
    }
    torch.manual_seed(0)
    net = getattr(transformers, module)(make[module]())
    x = torch.randint(11, shape) if len(shape) == 2 else torch.randn(shape)
    y = torch.randint(11, shape) if module == "GPT2LMHeadModel" else torch.randint(4, (N,))
    before = everything(net)
    layers = next(name for name, part in net.named_modules() if isinstance(part, nn.ModuleList))
    chained = sonde.chain(net, [f"{layers}.*"], sample=x)
    assert_same(before, everything(net))
    for rule in (DirectFeedback(), FeedbackAlignment()):
        assignment = CreditAssignment(chained, rule, sample=x)
        assignment.backward(x, y)
        assert all(p.grad is not None for p in chained.blocks.parameters())
        take(chained, x, y, assignment.loss, Context(credits=assignment.credits))


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (script,) = (s for s in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "sonde.chain(" in s)
    with torch.random.fork_rng(devices=[]):
        exec(script, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [["credit_cosine", str(layer)] for layer in range(4)]


def test_the_old_name_of_pooling_still_works_with_a_warning() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.warns(DeprecationWarning, match="use pooling"):
        net = sonde.chain(module, reader="mean")
    assert net.pooling == sonde.chain(module, pooling="mean").pooling
    assert net.pooling is not None
    assert net.pooling.name == "mean"
