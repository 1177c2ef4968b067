"""Any loss: modules of torch.nn and functions, per sample, per token, and refused where there is nothing per sample."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import sonde
from networks import read
from plain_modules import GUESTS, T, V, images, words
from sonde.core.errors import SondeError
from sonde.metrics.probes import Context, take
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, Loss, LossFunction, as_loss
from sonde.rules import RULES, Backprop, DirectFeedback
from sonde.training.credit_assignment import CreditAssignment


def clip(output: Tensor, y: Tensor) -> Tensor:
    """A contrastive loss: every sample is compared with all others."""
    z = F.normalize(output, dim=-1)
    return F.cross_entropy(z @ z.T, torch.arange(len(z)))


def summed(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().sum()


def shifted(output: Tensor, y: Tensor) -> Tensor:
    """Next words, as language models are trained."""
    return F.cross_entropy(output[:, :-1].flatten(0, 1), y[:, 1:].flatten())


def looking(output: Tensor, y: Tensor) -> Tensor:
    """It looks at values, which vmap cannot do."""
    errors = (output - y).square().flatten(1).mean(1)
    return torch.stack([e * 2 if e.item() > 1 else e for e in errors]).mean()


def test_hits_are_of_the_labels_that_count() -> None:
    loss = as_loss(nn.CrossEntropyLoss(), (3,))
    assert loss.hits is not None
    logits = F.one_hot(torch.tensor([0, 1, 2, 0]), 3).double()
    assert loss.hits(logits, torch.tensor([0, 1, -100, -100])).tolist() == [True, True]
    assert loss.hits(logits, torch.tensor([0, 2, 2, 0])).tolist() == [True, False, True, True]


LABELS = torch.tensor([0, 1, 2, 3, 1, 0])
WORDS = torch.tensor([[1, 2, 3, 4, 5], [0, 0, 0, 0, 0], [1, -100, -100, 4, 5], [-100] * 5])
CASES: dict[str, tuple[LossFunction, tuple[int, ...], Tensor]] = {
    "cross entropy": (nn.CrossEntropyLoss(), (6, 4), LABELS),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), (6, 4), LABELS),
    "class weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])), (6, 4), LABELS),
    "class weights and smoothing": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]), label_smoothing=0.2),
        (6, 4),
        LABELS,
    ),
    "an ignored label": (nn.CrossEntropyLoss(ignore_index=1), (6, 4), LABELS),
    "soft labels": (nn.CrossEntropyLoss(), (6, 4), torch.rand(6, 4).softmax(-1)),
    "words, N×T×V": (nn.CrossEntropyLoss(), (4, T, V), WORDS.clamp_min(0)),
    "words, N×V×T": (nn.CrossEntropyLoss(), (4, V, T), WORDS.clamp_min(0)),
    "words, some of them padding": (nn.CrossEntropyLoss(), (4, T, V), WORDS),
    "maps of classes": (nn.CrossEntropyLoss(), (4, 3, 2, 2), torch.randint(3, (4, 2, 2))),
    "log-likelihood": (nn.NLLLoss(), (6, 4), LABELS),
    "squares": (nn.MSELoss(), (6, 4), torch.randn(6, 4)),
    "squares of tokens": (nn.MSELoss(), (6, T, 4), torch.randn(6, T, 4)),
    "one output": (nn.BCEWithLogitsLoss(), (6,), torch.rand(6)),
    "robust": (nn.HuberLoss(), (6, 4), torch.randn(6, 4)),
    "values of each sample": (nn.CrossEntropyLoss(reduction="none"), (6, 4), LABELS),
    "a function": (lambda z, y: F.cross_entropy(z, y), (6, 4), LABELS),
    "a function of words": (shifted, (4, T, V), WORDS.clamp_min(0)),
    "a function that looks": (looking, (6, 4), torch.randn(6, 4)),
}


# Where PyTorch takes the same arguments, in the same layout and precision, and gives one number.
OTHERWISE = ("values of each sample", "words, N×T×V", "words, some of them padding", "class weights")
AS_PYTORCH = [name for name in CASES if not name.startswith(OTHERWISE)]


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_batch_is_the_mean_of_what_its_samples_contribute(name: str) -> None:
    criterion, shape, y = CASES[name]
    z = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = y.double() if y.is_floating_point() else y
    loss = as_loss(criterion, shape[1:])
    values_N = loss.per_sample(z, y)
    assert values_N.shape == (shape[0],)
    torch.testing.assert_close(values_N.mean(), loss.mean(z, y), rtol=1e-12, atol=0)
    if name in AS_PYTORCH:
        torch.testing.assert_close(loss.mean(z, y), criterion(z, y), rtol=1e-12, atol=0)
    (e,) = torch.autograd.grad(loss.mean(z, y), z)
    torch.testing.assert_close(loss.error(z, y) / shape[0], e, rtol=1e-10, atol=1e-15)
    for i in range(shape[0]):  # a sample's contribution depends on its own output alone
        other = z.detach().clone()
        other[torch.arange(len(z)) != i] += 1
        torch.testing.assert_close(loss.per_sample(other, y)[i], values_N[i].detach(), rtol=1e-10, atol=1e-15)


def test_a_sample_of_a_language_model_has_the_mean_of_its_own_words() -> None:
    x = torch.randn(4, T, V, dtype=torch.float64)
    y = WORDS.clamp_min(0)
    expected = torch.stack([F.cross_entropy(z, words) for z, words in zip(x, y, strict=True)])
    for loss, output in ((nn.CrossEntropyLoss(), x), (nn.CrossEntropyLoss(), x.mT), (CROSS_ENTROPY, x)):
        torch.testing.assert_close(as_loss(loss, output.shape[1:]).per_sample(output, y), expected)


def test_sonde_s_own_losses_stay_what_they_are_on_vectors() -> None:
    assert as_loss(CROSS_ENTROPY, (4,)) is CROSS_ENTROPY
    assert as_loss(MEAN_SQUARED_ERROR, (4,)) is MEAN_SQUARED_ERROR


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, CROSS_ENTROPY])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_the_same_whichever_way_the_loss_is_given(rule: str, loss: Loss | LossFunction) -> None:
    x, y = images()
    gradients = []
    for given in (CROSS_ENTROPY, loss):
        net = GUESTS["sequential"].chain().double()
        assignment = CreditAssignment(net, RULES[rule](), sample=x.double(), loss=given)
        assignment.backward(x.double(), y)
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-14)


def test_readings_are_the_same_whichever_way_the_loss_is_given() -> None:
    x, y = images(12)
    net = GUESTS["sequential"].chain()
    found = []
    for loss in (CROSS_ENTROPY, nn.CrossEntropyLoss(), F.cross_entropy):
        assignment = CreditAssignment(net, DirectFeedback(), sample=x, loss=loss)
        found.append(read(take(net, x, y, loss, Context(credits=assignment.credits))))
    for key, reading in found[0].items():
        for other in found[1:]:
            assert other[key].value == pytest.approx(reading.value, rel=1e-6, abs=1e-12, nan_ok=True), key
            assert other[key].reason == reading.reason, key


def test_a_loss_that_mixes_samples_is_refused_by_name_where_something_per_sample_is_asked_for() -> None:
    x, y = images()
    net = GUESTS["sequential"].chain()
    assignment = CreditAssignment(net, DirectFeedback(), sample=x, loss=clip)
    message = r"clip mixes samples: the loss of 6 samples is .* train with bp"
    with pytest.raises(SondeError, match=message):
        assignment.backward(x, y)
    with pytest.raises(SondeError, match=message):
        take(net, x, y, clip)


def test_backprop_asks_for_nothing_per_sample() -> None:
    x, y = images()
    net = GUESTS["sequential"].chain().double()
    (expected,) = torch.autograd.grad(clip(net.module(x.double()), y), [net.module[1].weight])  # type: ignore[index, list-item]
    CreditAssignment(net, Backprop(), sample=x.double(), loss=clip).backward(x.double(), y)
    torch.testing.assert_close(net.module[1].weight.grad, expected)  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.CrossEntropyLoss(reduction="sum"),
            r"CrossEntropyLoss adds up the samples: give it",
        ),
        (lambda: "cross entropy", r"a loss is a function of \(output, y\), not a str"),
    ],
)
def test_what_is_no_mean_over_samples_is_refused_at_once(make: Callable[[], LossFunction], message: str) -> None:
    with pytest.raises(SondeError, match=message):
        as_loss(make(), (4,))


def test_a_function_that_adds_up_is_told_to_divide() -> None:
    with pytest.raises(SondeError, match=r"summed adds up the samples: divide by their number"):
        as_loss(summed, (4,)).per_sample(torch.randn(6, 4), torch.randn(6, 4))


def test_logits_that_could_be_read_two_ways_are_not_guessed_at() -> None:
    z, y = torch.randn(3, 4, 4), torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(SondeError, match=r"may be N×T×V or N×V×T: say which by a function"):
        as_loss(nn.CrossEntropyLoss(), (4, 4)).mean(z, y)


def test_targets_that_are_not_one_a_sample_are_refused() -> None:
    with pytest.raises(SondeError, match=r"6 outputs have targets of shape \(5,\)"):
        as_loss(nn.CrossEntropyLoss(), (4,)).mean(torch.randn(6, 4), torch.zeros(5, dtype=torch.long))


def test_accuracy_counts_words_where_words_are_labels() -> None:
    z = torch.zeros(2, 3, 5)
    z[:, :, 1] = 1
    hits = as_loss(nn.CrossEntropyLoss(), (3, 5)).hits
    assert hits is not None
    assert hits(z, torch.tensor([[1, 1, 0], [1, 2, 2]])).tolist() == [True, True, False, True, False, False]


def test_a_per_token_loss_reaches_each_token_under_dfa() -> None:
    x, y = words()
    assignment = CreditAssignment(GUESTS["gpt"].chain(), DirectFeedback(), sample=x)
    looked = take(assignment.net, x, y, assignment.loss, Context(credits=assignment.credits))
    assert looked.credits is not None
    error = looked.loss.error(looked.output_NC, y)
    for a, b in zip(looked.credits, assignment.state.matrices, strict=True):  # type: ignore[attr-defined]
        assert tuple(b.shape) == (8, V)
        torch.testing.assert_close(a, error @ b.double().T)


def test_the_weights_of_a_loss_follow_the_precision_of_a_snapshot() -> None:
    x, y = images()
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    net = sonde.chain(GUESTS["sequential"].build(), sample=x)
    looked = take(net, x, y, weighted)
    assert looked.losses_N.dtype == torch.float64
    assert weighted.weight is not None
    assert weighted.weight.dtype == torch.float32
    assert looked.losses_N.mean().item() == pytest.approx(weighted(net.module(x), y).item(), rel=1e-5)
