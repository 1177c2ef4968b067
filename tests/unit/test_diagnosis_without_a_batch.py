"""What rows and the operations of the loss tell by themselves, and what the newer experiments measure."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.analysis.diagnosis.finding import Findings
from sonde.observe.experiments.losses import compares_samples
from sonde.observe.experiments.pairs import leak
from sonde.observe.operations import gate_saturation


def trained(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: object,
    *,
    optimiser: torch.optim.Optimizer | None = None,
    steps: int = 120,
) -> Findings:
    """Findings of a plain loop, without a batch."""
    optimiser = optimiser or torch.optim.Adam(model.parameters(), lr=3e-3)
    watch = sonde.watch(model, optimiser, loss=loss, runs=None)  # type: ignore[arg-type]
    for step in range(steps):
        places = torch.arange(20 * step, 20 * (step + 1)) % len(x)
        optimiser.zero_grad()
        value = loss(model(x[places]), y[places])  # type: ignore[operator]
        value.backward()
        optimiser.step()
        watch.log(value)
    found = watch.diagnose()
    watch.close()
    return found


def loud(found: Findings) -> list[str]:
    return [one.name for one in found if one.level != "note"]


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    return x, x[:, 0] * x[:, 1]


def net(out: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, out))


def distance(out: Tensor, y: Tensor) -> Tensor:
    return ((out - y) ** 2).mean()


def test_an_output_that_broadcasts_in_the_loss_is_seen_in_its_operations() -> None:
    x, y = data()
    assert loud(trained(net(), x, y, distance)) == ["wrong_label_shape"]
    assert loud(trained(net(), x, y[:, None], distance)) == []


class PlainList(nn.Module):
    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        layers = [nn.Linear(6, 5), nn.Linear(5, 5)]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.head = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out: Tensor = self.head(x)
        return out


def test_modules_in_a_plain_list_are_found_unless_an_optimiser_holds_them() -> None:
    x, y = data()
    assert "not_in_optimiser" in loud(trained(PlainList(registered=False), x, y[:, None], distance, steps=12))
    assert "not_in_optimiser" not in loud(trained(PlainList(registered=True), x, y[:, None], distance, steps=12))
    kept = PlainList(registered=False)
    held = [*kept.parameters(), *(p for layer in kept.layers for p in layer.parameters())]
    optimiser = torch.optim.Adam(held, lr=3e-3)
    assert "not_in_optimiser" not in loud(trained(kept, x, y[:, None], distance, optimiser=optimiser, steps=12))


def test_layers_that_nobody_holds_are_found_in_a_stored_run(tmp_path: Path) -> None:
    x, y = data()
    kept = PlainList(registered=False)
    optimiser = torch.optim.Adam(kept.parameters(), lr=3e-3)
    watch = sonde.watch(kept, optimiser, runs=tmp_path)
    for _ in range(12):
        distance(kept(x), y[:, None]).backward()
        optimiser.step()
    watch.close()
    (run,) = sonde.load(tmp_path).watched
    assert run.facts["unregistered"] == watch.facts["unregistered"] != []


def test_what_comes_before_the_model_is_not_counted_among_its_parameters() -> None:
    x, y = data()
    before, model = nn.Linear(6, 6), net()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    watch = sonde.watch(model, optimiser, runs=None)
    distance(model(before(x[:20])), y[:20, None]).backward()
    optimiser.step()
    assert watch.facts["unregistered"] == []
    watch.close()


@pytest.mark.parametrize(("rate", "said"), [(3e-6, ["lr_too_low"]), (1e-2, [])])
def test_a_rate_too_low_is_told_by_how_far_the_weights_came(rate: float, said: list[str]) -> None:
    x, _ = data()
    model, y = net(2), (x[:, 0] > 0).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    assert loud(trained(model, x, y, functional.cross_entropy, optimiser=optimiser)) == said


def test_a_cross_entropy_far_below_zero_has_the_wrong_sign() -> None:
    x, _ = data()
    y = (x[:, 0] > 0).long()
    found = trained(net(2), x, y, lambda out, y: -functional.cross_entropy(out, y), steps=300)
    assert "wrong_loss" in loud(found)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gates_are_those_of_a_cell_that_is_computed_step_by_step(kind: type[nn.LSTM | nn.GRU]) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, 4, batch_first=True), torch.randn(5, 7, 3)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=4.0)
    own = dict(layer.named_parameters())
    h = torch.zeros(5, 4)
    shares = []
    with torch.no_grad():
        out = layer(x)[0]
        for place in range(7):
            z = x[:, place] @ own["weight_ih_l0"].T + h @ own["weight_hh_l0"].T
            z = z + own["bias_ih_l0"] + own["bias_hh_l0"]
            chosen = torch.cat([z[:, :8], z[:, 12:]], 1) if kind is nn.LSTM else z[:, :8]
            at_bound = (chosen.sigmoid() < 0.01) | (chosen.sigmoid() > 0.99)
            shares.append(at_bound.double().mean())
            h = out[:, place]
    found = gate_saturation(layer, lambda model: model(x))
    assert found is not None
    assert found["saturated"] == pytest.approx(float(torch.stack(shares).mean()), abs=0.02)
    assert found["saturated"] > 0.3


def test_a_loss_of_distances_between_samples_is_not_one_of_classes() -> None:
    y = torch.arange(12) % 3
    together = y[:, None] == y[None]

    def apart(out: Tensor, y: Tensor) -> Tensor:
        return (torch.cdist(out, out) * together).mean()

    assert compares_samples(apart, torch.randn(12, 4), y)
    assert not compares_samples(functional.cross_entropy, torch.randn(12, 4), y)


def several(x: Tensor) -> Tensor:
    """Four classes, by the signs of two inputs."""
    return (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


def test_a_softmax_over_the_samples_is_seen_in_the_graph() -> None:
    x, _ = data()
    found = trained(net(4), x, several(x), lambda out, y: functional.nll_loss(out.log_softmax(0), y))
    assert loud(found)[0] == "wrong_loss"


def test_equal_images_are_seen_in_the_first_step() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 6, 6).expand(400, -1, -1, -1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    found = trained(model, x, torch.randint(4, (400,)), functional.cross_entropy)
    assert loud(found) == ["constant_input"]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy], ids=["targets seen", "not seen"])
def test_labels_without_a_relation_are_told_and_a_batch_is_asked_for(loss: object) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6000, 6), torch.randint(4, (6000,))
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    found = trained(model, x, y, loss, steps=250)
    assert loud(found) == ["wrong_labels"], str(found)
    assert any("diagnose(batch=" in one.remedy for one in found)
    assert not any("skip connections" in one.remedy for one in found)


def test_a_feature_that_is_the_target_is_seen_in_the_first_step() -> None:
    x, _ = data()
    y = several(x)
    batches = torch.cat([y[:, None].float(), x[:, 1:]], 1).split(40), y.split(40)
    model, loss = net(4), nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    with sonde.watch(model, optimiser, loss=loss, runs=None) as watch:
        for x, y in [*zip(*batches, strict=True)] * 12:
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
        assert loud(watch.diagnose()) == ["target_leakage"]


def test_targets_that_number_the_samples_are_no_leak() -> None:
    x = torch.randn(32, 6)
    assert leak(x, torch.arange(32), "classes") is None
    y = torch.arange(32) % 4
    assert leak(torch.cat([x, y[:, None].float()], 1), y, "classes") == {"feature": 6, "n": 32}


def test_a_feature_of_few_values_tells_few_labels_by_chance() -> None:
    y = torch.arange(24) % 10
    rare = torch.zeros(24, 64)
    rare[y == 3, 30] = 1.0  # as a pixel at the margin, which is on in two pictures of 24
    assert leak(rare + torch.cat([torch.randn(24, 30), torch.zeros(24, 34)], 1), y, "classes") is None
    assert leak(torch.cat([torch.randn(24, 63), y[:, None].float()], 1), y, "classes") == {"feature": 63, "n": 24}


class Pairs(nn.Module):
    """The products of a view's code with that of the other view, first, and with those of the other samples."""

    def __init__(self, *, constant: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)), nn.Linear(8, 40)
        self.constant = constant

    def forward(self, x: Tensor) -> Tensor:
        if self.constant:
            h: Tensor = self.head(self.body(x))
            return h
        noisy = (x + 0.3 * torch.randn_like(x) for _ in range(2))
        one, other = (functional.normalize(self.body(view), dim=1) for view in noisy)
        far = (one @ other.T).masked_fill(torch.eye(len(x), dtype=torch.bool), -1.0)
        return torch.cat([(one * other).sum(1, keepdim=True), far], 1) / 0.2


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_targets_that_are_constant_on_purpose_say_nothing_about_labels(constant: bool, batch: bool) -> None:
    torch.manual_seed(0)
    model, loss = Pairs(constant=constant), nn.CrossEntropyLoss()
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    with sonde.watch(model, optimiser, loss=loss, runs=None) as watch:
        for _ in range(150):
            x, y = torch.randn(32, 8), torch.zeros(32, dtype=torch.long)
            optimiser.zero_grad()
            loss(model(x), y).backward()
            optimiser.step()
        found = watch.diagnose(batch=(x, y)) if batch else watch.diagnose()
    assert loud(found) == (["wrong_labels"] if constant else []), str(found)


class Chosen(nn.Module):
    """Products of what was seen with the next thing, and with another one (SASRec)."""

    def __init__(self) -> None:
        super().__init__()
        self.things = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.body, self.norm = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.LayerNorm(16)

    def forward(self, seen: Tensor, asked: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(seen.shape[1])
        h = self.norm(self.body(self.things(seen), mask=mask, is_causal=True))
        return (h[:, :, None] * self.things(asked)).sum(-1)


@pytest.mark.parametrize(("rate", "said"), [(5e-3, []), (0.5, ["lr_too_high"])])
def test_a_mask_in_place_of_targets_tells_no_constant_answer_and_rates_are_still_compared(
    rate: float, said: list[str]
) -> None:
    torch.manual_seed(0)

    def loss(out: Tensor, mask: Tensor) -> Tensor:
        wanted = torch.tensor([1.0, 0.0]).expand_as(out)
        each = functional.binary_cross_entropy_with_logits(out, wanted, reduction="none")
        return (each * mask[..., None]).sum() / (2 * mask.sum())

    model = Chosen()
    optimiser = torch.optim.Adam(model.parameters(), rate)
    with sonde.watch(model, optimiser, loss=loss, runs=None) as watch:
        for _ in range(150):
            x = (torch.randint(20, (48, 1)) + 3 * torch.arange(9)) % 20
            asked = torch.stack([x[:, 1:], torch.randint(20, (48, 8))], 2)
            batch = (x[:, :-1], asked), (torch.arange(8) >= torch.randint(5, (48, 1))).float()
            optimiser.zero_grad()
            value = loss(model(*batch[0]), batch[1])
            value.backward()
            optimiser.step()
            watch.log(value)
        assert loud(watch.diagnose(batch=batch)) == said


def test_branches_that_start_at_zero_are_no_units_alike_in_a_run_that_learns_in_part() -> None:
    torch.manual_seed(0)

    class Coupled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 6)) for _ in range(4))
            for part in self.parts:
                nn.init.zeros_(part[2].weight)  # type: ignore[index]
                nn.init.zeros_(part[2].bias)  # type: ignore[index]

        def forward(self, x: Tensor) -> Tensor:
            a, b, logs = x[:, :3], x[:, 3:], 0.0
            for part in self.parts:
                scale, shift = part(a).chunk(2, 1)
                a, b, logs = b * scale.tanh().exp() + shift, a, logs + scale.tanh().sum(1)
            return (a.square() + b.square()).sum(1) / 2 - logs

    x = torch.randn(2000, 6) @ torch.randn(6, 6)
    model = Coupled()
    adam = torch.optim.Adam(model.parameters(), 2e-4)
    found = trained(model, x, torch.zeros(2000), lambda out, y: out.mean() + 5.5, optimiser=adam)
    assert loud(found) == [], str(found)


def test_a_distance_of_ones_own_with_the_wrong_sign_runs_away() -> None:
    x, y = data()
    model = net()
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    loss = lambda out, y: -(out[:, 0] - y).abs().pow(1.5).mean()  # noqa: E731
    assert loud(trained(model, x, y, loss, optimiser=adam))[0] == "wrong_loss"
