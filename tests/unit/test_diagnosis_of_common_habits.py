"""Habits of real programs that diagnoses once misread, each in a few lines; and whether a run learns."""

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from faulty_programs import blobs, layers
from sonde.analysis import diagnosis
from sonde.analysis.diagnosis.finding import Findings
from sonde.analysis.diagnosis.loop_faults import looks_fresh
from sonde.observe import experiments
from sonde.observe.experiments.losses import probe_loss
from sonde.observe.facts import InitialParameters

INITS: dict[str, Callable[[Tensor], Any]] = {
    "uniform": lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
    "normal": lambda w: nn.init.normal_(w, 0, 0.02),
    "kaiming": nn.init.kaiming_normal_,
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "orthogonal": nn.init.orthogonal_,
}


def loud(found: Findings) -> list[str]:
    return [one.name for one in found if one.level != "note"]


def drawn(name: str, model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            INITS[name](module.weight)
            nn.init.zeros_(module.bias)
    return model


def trained(
    model: nn.Module,
    step: Callable[[nn.Module, Tensor, Tensor], Tensor],
    *,
    rate: float = 3e-3,
    loss: Any = None,
    log: bool = True,
    steps: int = 150,
    data: tuple[Tensor, Tensor] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
) -> Any:
    """The watch of a plain loop, still open."""
    x, y = data or blobs()
    optimiser = optimiser or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)
    for place in range(steps):
        chosen = torch.arange(32 * place, 32 * (place + 1)) % len(x)
        optimiser.zero_grad()
        value = step(model, x[chosen], y[chosen])
        value.backward()
        optimiser.step()
        if log:
            watch.log(value)
    watch.kept = model  # experiments need it
    return watch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def start_of(weight: Tensor) -> dict[str, Any]:
    holder = nn.Module()
    holder.weight = nn.Parameter(weight)
    known = InitialParameters(holder).statistics(holder.weight)
    return {"shape": list(weight.shape), "start": known}


@pytest.mark.parametrize("shape", [(64, 64), (128, 32), (16, 8, 3, 3)])
@pytest.mark.parametrize("name", INITS)
def test_common_initialisations_look_fresh(name: str, shape: tuple[int, ...]) -> None:
    weight = torch.empty(shape)
    INITS[name](weight)
    assert looks_fresh(start_of(weight))


@pytest.mark.parametrize("name", INITS)
def test_trained_weights_do_not_look_fresh(name: str) -> None:
    model = drawn(name, layers(10, 64, 64, 5))
    trained(model, lambda m, x, y: functional.cross_entropy(m(x), y), rate=1e-2, steps=300).close()
    assert not looks_fresh(start_of(model[2].weight.detach()))


@pytest.mark.parametrize("name", INITS)
def test_forgotten_layers_and_low_rates_are_found_under_any_initialisation(name: str) -> None:
    def step(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(m(x), y)

    model = drawn(name, layers(10, 64, 64, 5))
    watch = trained(model, step, optimiser=torch.optim.Adam(model[4].parameters(), 1e-3))
    assert "not_in_optimiser" in loud(watch.diagnose())
    watch.close()
    watch = trained(drawn(name, layers(10, 64, 64, 5)), step, rate=1e-6)
    assert loud(watch.diagnose()) == ["lr_too_low"]
    watch.close()


def test_a_softmax_of_the_loop_before_a_cross_entropy_is_seen() -> None:
    watch = trained(layers(10, 32, 5), lambda m, x, y: functional.cross_entropy(m(x).softmax(-1), y))
    assert loud(watch.diagnose()) == ["wrong_output_activation"]
    watch.close()


def test_log_softmax_and_nll_are_a_proper_loss() -> None:
    model, loss = nn.Sequential(layers(10, 32, 5), nn.LogSoftmax(-1)), nn.NLLLoss()
    watch = trained(model, lambda m, x, y: loss(m(x), y), loss=loss, rate=1e-6)
    x, y = blobs()
    assert loud(watch.diagnose(batch=(x[:64], y[:64]))) == ["lr_too_low"]
    watch.close()


@pytest.mark.parametrize("squashed", [False, True])
def test_players_of_a_game_are_not_judged_by_their_losses(squashed: bool) -> None:
    judge, maker = layers(2, 32, 1), layers(4, 32, 2)
    loss: nn.Module = nn.BCEWithLogitsLoss()
    if squashed:
        judge, loss = nn.Sequential(judge, nn.Sigmoid()), nn.BCELoss()
    first, second = (torch.optim.Adam(model.parameters(), 1e-3) for model in (judge, maker))
    watches = sonde.watch(judge, first, loss=loss, runs=None), sonde.watch(maker, second, runs=None)
    one, zero = torch.ones(64, 1), torch.zeros(64, 1)
    for _ in range(150):
        real, made = torch.randn(64, 2), maker(torch.randn(64, 4))
        first.zero_grad()
        loss(judge(real), one).backward()
        loss(judge(made.detach()), zero).backward()
        first.step()
        second.zero_grad()
        value = type(loss)()(judge(made), one)
        value.backward()
        second.step()
        watches[1].log(value)
    for watch, batch in zip(watches, ((real, one), None), strict=True):
        found = watch.diagnose(batch=batch)
        assert loud(found) == []
        assert "no measure of success" in str(found)
        watch.close()


@pytest.mark.parametrize("learns", [True, False])
def test_a_success_metric_judges_where_the_loss_does_not(learns: bool) -> None:
    model, teacher = layers(4, 32, 3), torch.randn(4, 3)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2 if learns else 1e-7)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(200):
        x = torch.randn(32, 4)
        chosen = torch.distributions.Categorical(logits=model(x))
        action = chosen.sample()
        reward = (action == (x @ teacher).argmax(1)).float()
        value = -(chosen.log_prob(action) * (reward - reward.mean())).mean()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        watch.log(value, reward=reward.mean())
    found = watch.diagnose()
    assert bool(loud(found)) is not learns
    assert learns or "lr_too_low" in loud(found)
    assert set(watch.rows.filter(metric="success")["module"]) == {"reward"}
    watch.close()


def test_token_ids_are_classes_whatever_the_axes() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.embed(x)).view(-1, 40)
            return out

    x = torch.randint(40, (64, 12))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out, y.view(-1))

    watch = trained(Tokens(), lambda m, x, y: loss(m(x), y), loss=loss, rate=1e-6, data=(x, x))
    evidence = watch.signs(batch=(x, x))
    assert evidence.trial("targets", "kind") == "classes"
    assert "unnormalised_target" not in loud(diagnosis.diagnose(evidence))
    watch.close()


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), lambda out, y: functional.mse_loss(out[0], y), lambda out, y: ((out - y) ** 2).mean()]
)
def test_a_model_that_returns_its_state_too_is_asked_as_the_loop_does(loss: Any) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(3, 12, batch_first=True), nn.Linear(12, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out, hidden = self.cell(x)
            return self.head(out[:, -1]), hidden

    x = torch.randn(320, 4, 3)
    y = x.sum((1, 2))[:, None] / 3
    watch = trained(
        Pair(), lambda m, x, y: functional.mse_loss(m(x)[0], y), loss=loss, rate=1e-2, data=(x, y), steps=250
    )
    assert loud(watch.diagnose(batch=(x[:64], y[:64]))) == []
    watch.close()


def test_without_a_loss_it_is_said_what_was_not_asked() -> None:
    watch = trained(layers(10, 32, 5), lambda m, x, y: functional.cross_entropy(m(x), y), log=False, rate=1e-6)
    told = str(watch.diagnose())
    assert "Nothing is wrong" not in told
    assert "no loss was seen" in told
    watch.close()


@pytest.mark.parametrize("loss", [nn.MSELoss(), functional.mse_loss, lambda out, y: (out - y).abs().pow(1.5).mean()])
@pytest.mark.parametrize("told", [True, False], ids=["loss known", "rows alone"])
def test_a_loss_that_falls_to_that_of_a_constant_is_never_nothing_wrong(loss: Any, told: bool) -> None:
    """The head starts far off and learns the mean of targets that do not depend on inputs."""
    model = layers(4, 16, 1)
    nn.init.constant_(model[-1].bias, 20.0)  # type: ignore[arg-type]
    data = torch.randn(640, 4), torch.randn(640, 1)
    watch = trained(model, lambda m, x, y: loss(m(x), y), loss=loss if told else None, data=data, rate=0.1, steps=300)
    for batch in (None, (data[0][:64], data[1][:64])) if told else (None,):
        assert not str(watch.diagnose(batch=batch)).startswith("Nothing is wrong")
    watch.close()


def test_a_batch_of_four_does_not_tell_what_a_constant_answer_reaches() -> None:
    """Four labels have an entropy of at most ln 4: a run that has learned a part of ten classes may be above that."""
    data = blobs(10)
    loss = nn.CrossEntropyLoss()
    watch = trained(layers(10, 32, 10), lambda m, x, y: loss(m(x), y), loss=loss, data=data, rate=5e-4, steps=120)
    assert loud(watch.diagnose(batch=(data[0][:4], torch.arange(4)))) == []
    watch.close()


def test_labels_that_are_drawn_anew_are_never_nothing_wrong() -> None:
    loss = nn.CrossEntropyLoss()
    watch = trained(layers(10, 32, 5), lambda m, x, y: loss(m(x), torch.randint(5, y.shape)), loss=loss)
    x, _ = blobs()
    for batch in (None, (x[:64], torch.randint(5, (64,)))):
        assert {"not_learning", "wrong_labels"} & set(loud(watch.diagnose(batch=batch)))
    watch.close()


def test_a_constant_answer_is_known_from_the_targets_seen() -> None:
    x = torch.randn(640, 4)
    rare = (torch.rand(640) < 0.1).long()
    loss = nn.CrossEntropyLoss()
    watch = trained(layers(4, 16, 2), lambda m, x, y: loss(m(x), y), loss=loss, data=(x, rare))
    share = float(rare[:32].float().mean())
    exact = -(share * math.log(share) + (1 - share) * math.log(1 - share)) + 1 / 64
    assert watch.signs().loss_of_chance == pytest.approx(exact, rel=1e-3)
    assert "class_imbalance" in loud(watch.diagnose(batch=(x[:128], rare[:128])))
    watch.close()


def test_scaled_inputs_come_before_the_rate_that_would_make_up_for_them() -> None:
    x, y = blobs()
    loss = nn.CrossEntropyLoss()
    model = layers(10, 32, 32, 5)
    watch = trained(
        model,
        lambda m, x, y: loss(m(x), y),
        loss=loss,
        data=(1000 * x, y),
        optimiser=torch.optim.SGD(model.parameters(), 0.1),
    )
    assert loud(watch.diagnose(batch=(1000 * x[:64], y[:64])))[0] == "unnormalised_input"
    watch.close()


def test_a_schedule_that_ends_too_early_and_a_clipped_gradient_are_rates_too_low() -> None:
    loss = nn.CrossEntropyLoss()
    model = layers(10, 32, 5)
    optimiser = torch.optim.SGD(model.parameters(), 0.01)

    def stepped(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        optimiser.param_groups[0]["lr"] *= 0.6
        return loss(m(x), y)

    watch = trained(model, stepped, loss=loss, optimiser=optimiser)
    (finding,) = [one for one in watch.diagnose() if one.level != "note"]
    assert (finding.name, "schedule" in finding.remedy) == ("lr_too_low", True)
    watch.close()
    model = layers(10, 32, 5)
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: 1e-5 * grad / grad.norm())  # type: ignore[no-untyped-call]
    watch = trained(model, lambda m, x, y: loss(m(x), y), loss=loss, optimiser=torch.optim.SGD(model.parameters(), 0.1))
    (finding,) = [one for one in watch.diagnose() if one.level != "note"]
    assert (finding.name, "Clip" in finding.remedy) == ("lr_too_low", True)
    watch.close()


def test_check_remarks_on_a_first_loss_far_from_chance_and_on_saturated_units() -> None:
    x, y = blobs()
    model = layers(10, 64, 64, 5, act=nn.Tanh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)
    said = " ".join(sonde.check(model, x[:64], y[:64], nn.CrossEntropyLoss()).remarks)
    assert "a constant answer has" in said
    assert "% of the outputs lie at a bound in 1, 3" in said


def test_a_diagnosis_ends_when_its_time_is_over() -> None:
    loss = nn.CrossEntropyLoss()
    watch = trained(layers(10, 32, 5), lambda m, x, y: loss(m(x), y), rate=1e-6, loss=loss)
    x, y = blobs()
    evidence = watch.signs(batch=(x[:64], y[:64]), seconds=0.0)
    assert evidence.trial("fits", "1") == {"failed": "no time was left"}
    watch.close()


def ranking(out: Tensor, y: Tensor) -> Tensor:
    return -functional.logsigmoid(out).mean()


def over_the_batch(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out, y)


class Matching(nn.Module):
    """Similarities of all samples with all others, by two views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = layers(5, 16, 8), layers(5, 16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.one(x[:, :5]) @ self.two(x[:, 5:]).T
        return h


class Apart(nn.Module):
    """The distance of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(5, 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.body(x[:, :5]) - self.body(x[:, 5:])
        return (h.square().sum(1) + 1e-6).sqrt()


def contrastive(out: Tensor, y: Tensor) -> Tensor:
    return (y * out**2 + (1 - y) * (1 - out).relu() ** 2).mean()


def of_views(kind: str) -> tuple[nn.Module, Any, Tensor, Tensor]:
    """Two views of a sample, for losses whose targets are no answers."""
    view = torch.randn(320, 5)
    if kind == "ranking":
        return layers(10, 16, 1), ranking, torch.cat([view, view.roll(1, 0) - 1], 1), torch.ones(320)
    if kind == "over the batch":
        return Matching(), over_the_batch, torch.cat([view, 0.5 * view.flip(1)], 1), torch.arange(32).repeat(10)
    y = (torch.arange(320) % 2).float()
    other = torch.where(y[:, None] == 1, view + 0.1 * torch.randn(320, 5), torch.randn(320, 5))
    return Apart(), contrastive, torch.cat([view, other], 1), y


@pytest.mark.parametrize("kind", ["ranking", "over the batch", "distance"])
def test_targets_that_are_no_answers_are_not_judged_as_answers(kind: str) -> None:
    model, loss, x, y = of_views(kind)
    with trained(model, lambda model, x, y: loss(model(x), y), loss=loss, data=(x, y)) as watch:
        assert loud(watch.diagnose(batch=(x[:32], y[:32]))) == []


def focal(out: Tensor, y: Tensor) -> Tensor:
    p = torch.where(y == 1, out.sigmoid(), 1 - out.sigmoid())
    return -((1 - p) ** 2 * p.log()).mean()


@pytest.mark.parametrize(
    ("loss", "is_median"),
    [
        (focal, False),
        (functional.binary_cross_entropy_with_logits, False),
        (functional.mse_loss, False),
        (functional.l1_loss, True),
        (lambda out, y: (out.sigmoid() - y).abs().mean(), True),
    ],
)
def test_an_absolute_error_is_told_by_an_answer_that_does_not_follow_the_shares(loss: Any, is_median: bool) -> None:
    y = (torch.arange(40) % 3 == 0).float()
    assert probe_loss(loss, torch.randn(40), y, "Addmm", "binary")["is_improper"] is is_median


@pytest.mark.parametrize("weighted", [True, False])
def test_a_weighed_loss_is_not_compared_with_that_of_the_shares(weighted: bool) -> None:
    x = torch.randn(320, 10)
    y = (x[:, :1] > 1.5).float()
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(14.0) if weighted else None)
    with trained(layers(10, 8, 1), lambda model, x, y: loss(model(x), y), loss=loss, rate=1e-5, data=(x, y)) as watch:
        names = [one.name for one in watch.diagnose()]
    assert ("class_imbalance" in names) is not weighted


def test_an_output_that_leaves_the_graph_is_no_low_rate() -> None:
    def step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(torch.tensor(model(x).detach().numpy(), requires_grad=True), y)

    with trained(layers(10, 32, 5), step) as watch:
        assert loud(watch.diagnose()) == ["detached_graph"]


class _Branches(ast.NodeVisitor):
    def __init__(self) -> None:
        self.count = 1

    def generic_visit(self, node: ast.AST) -> None:
        branches = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.Assert)
        self.count += isinstance(node, branches)
        if isinstance(node, ast.BoolOp):
            self.count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            self.count += 1 + len(node.ifs)
        super().generic_visit(node)


def test_no_diagnosis_is_a_decision_tree() -> None:
    most = {}
    folders = (Path(diagnosis.__file__).parent, Path(experiments.__file__).parent)
    for path in (path for folder in folders for path in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                counter = _Branches()
                for part in node.body:
                    counter.visit(part)
                most[f"{path.stem}.{node.name}"] = counter.count
    assert {name: count for name, count in most.items() if count > 12} == {}
