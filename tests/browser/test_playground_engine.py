"""The playground's engine against PyTorch, in a real browser, on weights exchanged as JSON."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from chromium import IN_CHROMIUM
from playground_reference import Reference
from torch import Tensor

from sonde.models import Model, PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network import Signature
from sonde.network.losses import CROSS_ENTROPY
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, Pepita, PredictiveCoding, Rule
from sonde.rules.states import Matrices
from sonde.training import step

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_CHROMIUM
CLOSE = 1e-5  # of the norm of what is compared
SETTINGS: dict[str, Any] = {
    "depth": 3,
    "width": 10,  # rows and columns that fill no tile of the engine
    "block": "one",
    "activation": "relu",
    "skip": False,
    "skip_scale": 1,
    "norm": "none",
    "out_ln": False,
    "scale": 1,
    "by_depth": False,
    "rule": "bp",
    "credit": "rms",
    "inference": 8,
    "task": "identity",
    "optimiser": "adam",
    "rate": 0.01,
    "decay": 0,
    "batch": 5,
    "seed": 7,
}
BLOCKS, NORMS = ("one", "two", "student"), ("none", "pre", "post")
ACTIVATIONS, SKIPS = ("relu", "tanh", "gelu", "linear"), ((False, 1), (True, 0.7))
RULES = ("bp", "fa", "dfa", "usf", "kp", "pc", "pepita", "frozen")
START = """() => {
  const engine = new Worker(URL.createObjectURL(new Blob([document.getElementById('engine').textContent])));
  window.ask = (request) => new Promise((done, fail) => {
    engine.onmessage = ({ data }) => done(data.answer);
    engine.onerror = (event) => fail(new Error(event.message));
    engine.postMessage({ kind: 'exchange', request });
  });
}"""
ASK = """async (requests) => {
  const answers = [];
  for (const request of JSON.parse(requests)) answers.push(await ask(request));
  return JSON.stringify(answers);
}"""
Exchange = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def exchange(browser: "Browser", playground: Path) -> Exchange:
    """Requests to the engine of a page opened from a file, and its answers."""
    page: Page = browser.new_page()
    page.goto(playground.as_uri())
    page.evaluate(START)
    return lambda requests: json.loads(page.evaluate(ASK, json.dumps(requests)))


def request(steps: int = 0, samples: int = 7, **changes: Any) -> dict[str, Any]:
    """A batch for a network; regression has as many inputs and outputs as the network is wide."""
    settings = SETTINGS | changes
    d, classifies = settings["width"], settings["task"] != "identity"
    sizes = {"inputs": 4 if classifies else d, "outputs": 3 if classifies else d, "classifies": classifies}
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(samples, sizes["inputs"], generator=rng)
    y = torch.randint(3, (samples,), generator=rng) if classifies else x
    return {
        "settings": settings,
        "sizes": sizes,
        "x": x.flatten().tolist(),
        "y": y.flatten().tolist(),
        "steps": steps,
    }


def reference(asked: dict[str, Any], answer: dict[str, Any]) -> tuple[Reference, dict[str, Tensor], Tensor, Tensor]:
    """The same network in float64, on the weights and feedback that the page exported."""
    sizes, settings = asked["sizes"], asked["settings"]
    weights = {
        name: torch.tensor(values, dtype=torch.float64).view(answer["shapes"][name])
        for name, values in answer["start"]["weights"].items()
    }
    feedback = {name: torch.tensor(v, dtype=torch.float64) for name, v in answer["start"]["feedback"].items()}
    x = torch.tensor(asked["x"], dtype=torch.float64).view(-1, sizes["inputs"])
    y = torch.tensor(asked["y"]) if sizes["classifies"] else x
    return Reference(settings | {"spread": answer["spread"]}, sizes, weights), feedback, x, y


def off(ours: Any, theirs: Tensor) -> float:
    """How far the page is from PyTorch, relative to the norm; zero must be zero."""
    ours = torch.as_tensor(ours, dtype=torch.float64).flatten()
    theirs = theirs.detach().flatten()
    scale = theirs.norm().item()
    return (ours - theirs).norm().item() / scale if scale else ours.norm().item()


def worst(answer: dict[str, Any], wanted: dict[str, Any]) -> float:
    assert answer["parameters"].keys() == wanted["parameters"].keys()
    pairs = [(answer["loss"], wanted["loss"]), (answer["output"], wanted["output"])]
    for part in ("states", "gradients", "credits"):
        pairs += zip(answer[part], wanted[part], strict=True)
    pairs += [(values, wanted["parameters"][name]) for name, values in answer["parameters"].items()]
    return max(off(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("task", ["identity", "teacher"])
def test_states_credits_and_gradients_are_pytorch_s_for_every_architecture(
    exchange: Exchange, rule: str, task: str
) -> None:
    asked = [
        request(
            rule=rule,
            task=task,
            block=b,
            norm=n,
            activation=a,
            skip=skip,
            skip_scale=scale,
            out_ln=o,
            credit=c,
        )
        for b, n, a, (skip, scale), o in product(BLOCKS, NORMS, ACTIVATIONS, SKIPS, (False, True))
        for c in (("rms", "none") if rule in ("fa", "dfa") and a == "relu" else ("rms",))
    ]
    for one, answer in zip(asked, exchange(asked), strict=True):
        net, feedback, x, y = reference(one, answer)
        assert worst(answer, net.run(feedback, x, y)) < CLOSE, one["settings"]


@pytest.mark.parametrize("rule", RULES)
def test_sixty_layers_are_as_exact_as_three(exchange: Exchange, rule: str) -> None:
    one = request(rule=rule, depth=60, width=32, skip=True, by_depth=True, task="teacher", samples=32)
    (answer,) = exchange([one])
    net, feedback, x, y = reference(one, answer)
    assert worst(answer, net.run(feedback, x, y)) < CLOSE


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("decay", [0, 0.1])
def test_optimisers_take_pytorch_s_steps(exchange: Exchange, optimiser: str, decay: float) -> None:
    one = request(steps=5, optimiser=optimiser, decay=decay, task="teacher", activation="tanh")
    (answer,) = exchange([one])
    net, feedback, x, y = reference(one, answer)
    rate = one["settings"]["rate"]
    values = list(net.w.values())
    stepper: torch.optim.Optimizer = (
        torch.optim.AdamW(values, lr=rate, weight_decay=decay)
        if optimiser == "adam"
        else torch.optim.SGD(values, lr=rate, momentum=0.9 if optimiser == "momentum" else 0)
    )
    for _ in range(5):
        net.run(feedback, x, y)
        if optimiser != "adam":
            with torch.no_grad():
                for value in values:
                    value.mul_(1 - rate * decay)  # decoupled, as AdamW's
        stepper.step()
    for name, values_js in answer["end"]["weights"].items():
        assert off(values_js, net.w[name]) < CLOSE, name


def test_kolen_pollack_takes_the_weights_steps_and_what_differs_decays(exchange: Exchange) -> None:
    one = request(steps=4, rule="kp", optimiser="sgd", decay=0.5, rate=0.1, task="teacher", block="two", norm="pre")
    (answer,) = exchange([one])
    net, feedback, x, y = reference(one, answer)
    for _ in range(4):
        net.run(feedback, x, y)
        with torch.no_grad():
            for name, value in net.w.items():
                if name in feedback:
                    feedback[name] = 0.95 * feedback[name] - 0.1 * value.grad.flatten()  # type: ignore[union-attr]
                value.mul_(0.95).sub_(0.1 * value.grad)  # type: ignore[operator]
    start, end = answer["start"], answer["end"]
    for name, v in end["feedback"].items():
        assert off(v, feedback[name]) < CLOSE
        apart = [torch.tensor(at["weights"][name]) - torch.tensor(at["feedback"][name]) for at in (start, end)]
        assert apart[1].norm() == pytest.approx(0.95**4 * apart[0].norm(), rel=1e-4)


@pytest.mark.parametrize("rule", ["usf", "kp"])
def test_a_rule_whose_matrices_are_the_weights_is_backprop(exchange: Exchange, rule: str) -> None:
    one = request(rule=rule, block="two", norm="pre", skip=True, task="teacher")
    (drawn,) = exchange([one])
    matrices = list(drawn["start"]["feedback"])
    weights = drawn["start"]["weights"]
    if rule == "usf":  # W with entries ±s
        weights |= {n: [math.copysign(drawn["spread"][n], w) for w in weights[n]] for n in matrices}
        given: dict[str, Any] = {"weights": weights}
    else:
        given = {"feedback": {n: weights[n] for n in matrices}}
    ours, bp = exchange([one | given, one | given | {"settings": one["settings"] | {"rule": "bp"}, "feedback": {}}])
    for a, g in zip(ours["credits"], bp["gradients"], strict=True):
        assert off(a, torch.tensor(g, dtype=torch.float64)) < CLOSE


@pytest.mark.parametrize(
    "rule",
    [Backprop(), FeedbackAlignment(), DirectFeedback(), PredictiveCoding(), Pepita(), Frozen()],
    ids=lambda r: r.label,
)
@pytest.mark.parametrize("model", ["plain_mlp", "res_mlp", "residual_mlp", "student_net"])
def test_where_sonde_has_the_network_its_own_step_gives_the_same_gradients(
    exchange: Exchange, model: str, rule: Rule
) -> None:
    d, depth, name = (
        SETTINGS["width"],
        SETTINGS["depth"],
        {"BP": "bp", "FA": "fa", "DFA": "dfa", "PC": "pc", "PEPITA": "pepita", "frozen": "frozen"},
    )
    kinds: dict[str, tuple[Model, dict[str, Any]]] = {
        "plain_mlp": (PlainMLP(d=d, L=depth), {}),
        "res_mlp": (ResMLP(d=d, L=depth), {"skip": True}),
        "residual_mlp": (
            ResidualMLP(d=d, L=depth),
            {"block": "two", "activation": "gelu", "norm": "pre", "skip": True, "out_ln": True},
        ),
        "student_net": (StudentNet(d=d, L=depth), {"block": "student", "activation": "tanh", "skip": True}),
    }
    built, changes = kinds[model]
    one = request(rule=name[rule.label], task="teacher", **changes)
    (answer,) = exchange([one])
    sizes, start = one["sizes"], answer["start"]
    signature = Signature(shape=(sizes["inputs"],), outputs=sizes["outputs"], classifies=True)
    net = built.build(signature, torch.Generator().manual_seed(0)).double()
    weights = {n: torch.tensor(v).double().view(answer["shapes"][n]) for n, v in start["weights"].items()}
    net.load_state_dict(weights)
    feedback = [torch.tensor(start["feedback"][k]).double() for k in sorted(start["feedback"], key=int)]
    x = torch.tensor(one["x"]).double().view(-1, sizes["inputs"])
    rows = sizes["inputs"] if isinstance(rule, Pepita) else d
    matrices = Matrices([b.view(rows, -1) for b in feedback])
    step.rule_backward(net, rule, matrices, x, torch.tensor(one["y"]), CROSS_ENTROPY)
    gradients = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    assert gradients.keys() == answer["parameters"].keys()
    assert max(off(answer["parameters"][n], g) for n, g in gradients.items()) < CLOSE


def test_weights_that_do_not_fit_are_refused(exchange: Exchange) -> None:
    from playwright.sync_api import Error

    with pytest.raises(Error, match="does not fit this network"):
        exchange([request() | {"weights": {"blocks.9.linear.weight": [1.0]}}])
