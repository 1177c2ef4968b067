"""Models of public training repositories, on small or generated data, as they are and with faults planted.

`public_files.py` reads the definitions.  The optimiser, its rate and the loss are those of the repository's script,
where that fits the smaller data.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item"

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import public_fourth
import public_more
import public_third
import torch
from faults import FAULTS, Group
from public_files import adam, classes, images, sgd
from recipes import Program, chain_of_tokens, draw, graph
from torch import nn
from torch.nn import functional


def min_gpt(seed: int) -> Program:

    file = classes("karpathy/minGPT", "mingpt/model.py", CN=None)
    config = SimpleNamespace(
        model_type=None, n_layer=2, n_head=3, n_embd=48, vocab_size=24, block_size=16,
        embd_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip
    model, x = file.GPT(config), chain_of_tokens()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    program = Program(
        model,
        optimiser,
        lambda out, y: functional.cross_entropy(out[0].view(-1, 24), y.reshape(-1)),
        draw(x[:, :-1], x[:, 1:], 120, 16, seed),
    )
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)  # type: ignore[assignment]
    return program


def le_net(seed: int) -> Program:
    model = classes("kuangliu/pytorch-cifar", "models/lenet.py").LeNet()
    x, y = images(32, 3)
    optimiser = sgd(model, 0.02, momentum=0.9, weight_decay=5e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 200, 32, seed))


def mnist_example(seed: int) -> Program:
    model = classes("pytorch/examples", "mnist/main.py").Net()
    x, y = images(28)
    optimiser = torch.optim.Adadelta(model.parameters(), 1.0)
    return Program(model, optimiser, functional.nll_loss, draw(x, y, 60, 16, seed))


def word_language_model(seed: int) -> Program:
    """The model takes and returns a hidden state."""
    model = classes("pytorch/examples", "word_language_model/model.py").RNNModel("LSTM", 24, 48, 48, 2, dropout=0.2)
    x = chain_of_tokens()
    hidden = model.init_hidden(32)
    batches = [((a.T.contiguous(), hidden), b.T.reshape(-1)) for a, b in draw(x[:, :-1], x[:, 1:], 200, 32, seed)]
    program = Program(model, sgd(model, 5.0), nn.NLLLoss(), batches)
    program.before_loss = lambda out: out[0]
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 0.25)  # type: ignore[assignment]
    return program


def vae_example(seed: int) -> Program:
    file = classes("pytorch/examples", "vae/main.py")
    model = file.VAE()
    x = images(28)[0].flatten(1)
    x = (x - x.min()) / (x.max() - x.min())
    loss = lambda out, y: file.loss_function(out[0], y, out[1], out[2])  # noqa: E731
    return Program(model, adam(model, 1e-3), loss, draw(x, x, 150, 64, seed))


def tcn_adding(seed: int) -> Program:
    network = classes("locuslab/TCN", "TCN/tcn.py")
    model = classes("locuslab/TCN", "TCN/adding_problem/model.py", TemporalConvNet=network.TemporalConvNet).TCN(
        2, 1, [16] * 4, kernel_size=5, dropout=0.0
    )
    utils = classes("locuslab/TCN", "TCN/adding_problem/utils.py")
    x, y = utils.data_generator(1000, 30)
    return Program(model, adam(model, 4e-3), nn.MSELoss(), draw(x, y, 250, 32, seed))


def gcn_example(seed: int) -> Program:
    known = graph(seed)
    (x, y), adjacency = known.batches[0], known.model.adjacency
    model = classes("pytorch/examples", "gcn/main.py").GCN(16, 16, 3)
    return Program(model, adam(model, 1e-2, weight_decay=5e-4), nn.NLLLoss(), [((x, adjacency), y)] * 150)


def resnet20(seed: int) -> Program:
    model = classes("akamaster/pytorch_resnet_cifar10", "resnet.py").resnet20()
    x, y = images(16, 3)
    optimiser = sgd(model, 0.1, momentum=0.9, weight_decay=1e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 110, 8, seed))


def mnist_rnn(seed: int) -> Program:
    model = classes("pytorch/examples", "mnist_rnn/main.py").Net()
    x, y = images(28)
    return Program(model, torch.optim.Adadelta(model.parameters(), 0.5), functional.nll_loss, draw(x, y, 200, 32, seed))


def sine_sequences(seed: int) -> Program:
    model = classes("pytorch/examples", "time_sequence_prediction/train.py").Sequence().double()
    start = torch.rand(200, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) * 6.28
    x = torch.sin(start + 0.4 * torch.arange(11))
    return Program(model, adam(model, 1e-2), nn.MSELoss(), draw(x[:, :-1], x[:, 1:], 110, 16, seed))


def super_resolution(seed: int) -> Program:
    model = classes("pytorch/examples", "super_resolution/model.py").Net(2)
    clean = images(8)[0]
    small = functional.avg_pool2d(clean, 2)
    return Program(model, adam(model, 1e-2), nn.MSELoss(), draw(small, clean, 120, 32, seed))


def pygcn(seed: int) -> Program:
    layers = classes("tkipf/pygcn", "pygcn/layers.py", Parameter=nn.Parameter, Module=nn.Module)
    model = classes("tkipf/pygcn", "pygcn/models.py", GraphConvolution=layers.GraphConvolution).GCN(16, 16, 3, 0.5)
    known = graph(seed)
    (x, y), adjacency = known.batches[0], known.model.adjacency
    return Program(model, adam(model, 1e-2, weight_decay=5e-4), functional.nll_loss, [((x, adjacency), y)] * 200)


def bidirectional(seed: int) -> Program:
    file = classes(
        "yunjey/pytorch-tutorial",
        "tutorials/02-intermediate/bidirectional_recurrent_neural_network/main.py",
        device=torch.device("cpu"),
    )
    model = file.BiRNN(28, 48, 1, 10)
    x, y = images(28)
    return Program(model, adam(model, 3e-3), nn.CrossEntropyLoss(), draw(x[:, 0], y, 150, 32, seed))


def tutorial_cnn(seed: int) -> Program:
    path = "tutorials/02-intermediate/convolutional_neural_network/main.py"
    model = classes("yunjey/pytorch-tutorial", path).ConvNet(10)
    x, y = images(28)
    return Program(model, adam(model, 1e-3), nn.CrossEntropyLoss(), draw(x, y, 110, 16, seed))


_EVERY = ("rate_times_100", "rate_over_1000", "forgotten_layers")
_CLASSES = ("softmax_in_the_loop", "labels_shuffled", "weights_times_10")

_DEVELOPMENT = {
    "min_gpt": (min_gpt, (*_EVERY, "frozen_layers", "weights_times_30")),
    "le_net": (le_net, (*_EVERY, *_CLASSES, "never_cleared")),
    "mnist_example": (mnist_example, ("forgotten_layers", "in_eval_mode")),
    "word_language_model": (word_language_model, ("rate_over_1000", "forgotten_layers")),
    "vae_example": (vae_example, ("rate_times_100",)),
    "tcn_adding": (tcn_adding, ("rate_times_100", "targets_broadcast")),
    "gcn_example": (gcn_example, ("rate_over_1000",)),
}
_JUDGED = {
    "resnet20": (
        resnet20,
        ("rate_over_1000", "forgotten_layers", "frozen_layers", "softmax_in_the_loop", "labels_shuffled"),
    ),
    "mnist_rnn": (mnist_rnn, ("rate_over_1000", "forgotten_layers")),
    "sine_sequences": (sine_sequences, ("rate_over_1000", "targets_times_1000")),
    "super_resolution": (super_resolution, ("rate_times_100", "rate_over_1000", "frozen_layers")),
    "pygcn": (pygcn, ("rate_over_1000", "labels_shuffled")),
    "bidirectional": (bidirectional, ("softmax_in_the_loop", "labels_shuffled", "schedule_per_batch")),
    "tutorial_cnn": (tutorial_cnn, ("forgotten_layers", "softmax_in_the_loop", "never_cleared", "in_eval_mode")),
}


def group(programs: Mapping[str, tuple[Callable[[int], Program], tuple[str, ...]]]) -> Group:
    """One half of the programs, as the scores ask for it."""
    faulty = [(name, fault) for name, (_, faults) in programs.items() for fault in faults]
    return Group({name: make for name, (make, _) in programs.items()}, FAULTS, faulty)


_HALF = group(_JUDGED | public_more.JUDGED)
_EARLIER = _DEVELOPMENT | public_more.DEVELOPMENT | _JUDGED | public_more.JUDGED | public_third.THIRD
GROUPS = {
    "public, development": group(_DEVELOPMENT | public_more.DEVELOPMENT),
    "public, judged": _HALF,
    "public, judged, 19 November": _HALF,  # scored again
    "public, third": group(public_third.THIRD),
    "public, fourth": group(public_fourth.FOURTH),
    "public, earlier healthy programs, scored again": group({name: (make, ()) for name, (make, _) in _EARLIER.items()}),
}
