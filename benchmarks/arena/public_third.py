"""A third group of models of public repositories, of 19 November 2026.  Faults were written down before any scoring.

`public.py` says how files are read.  `einops` is not a dependency of this project; two of the models need it.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, attr-defined, misc"

import contextlib
import io
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fresh_2026_11 import fit, four_classes, tones
from judged_2026_11_19_pictures import scenes
from judged_2026_11_19_sequences import seasons
from public_files import adam, classes, images, sgd
from public_more import clip
from recipes import Program, draw, graph, rng
from torch import Tensor, nn
from torch.nn import functional


def simple_vit(seed: int) -> Program:
    model = classes("lucidrains/vit-pytorch", "vit_pytorch/simple_vit.py").SimpleViT(
        image_size=16, patch_size=4, num_classes=10, dim=32, depth=3, heads=4, dim_head=8, mlp_dim=64, channels=1
    )
    program = fit(model, images(16), nn.CrossEntropyLoss(), seed, rate=2e-3, steps=180)
    program.optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=1e-4)
    program.after_backward = clip(1.0)
    return program


def graph_vae(seed: int) -> Program:
    """The model returns scores of all edges, means and logarithms of variances."""
    layers = classes("zfjsail/gae-pytorch", "gae/layers.py")
    file = classes("zfjsail/gae-pytorch", "gae/model.py", GraphConvolution=layers.GraphConvolution)
    lost = classes("zfjsail/gae-pytorch", "gae/optimizer.py").loss_function
    known = graph(seed)
    (x, _), near = known.batches[0], known.model.adjacency
    y = torch.gt(near, 0).float()
    rare, model = (1 - y).sum() / y.sum(), file.GCNModelVAE(16, 32, 16, 0.0)
    norm = y.numel() / (2 * (1 - y).sum())
    loss = lambda out, y: lost(out[0], y, out[1], out[2], len(y), norm, rare)  # noqa: E731
    return Program(model, adam(model, 1e-2), loss, [((x, near), y)] * 150)


def sr_cnn(seed: int) -> Program:
    """Three layers, the last with a tenth of the rate."""
    model = classes("yjn870/SRCNN-pytorch", "models.py").SRCNN()
    clean = images(16)[0]
    clean = (clean - clean.min()) / (clean.max() - clean.min())
    small = functional.interpolate(functional.avg_pool2d(clean, 2), scale_factor=2.0, mode="bicubic")
    program = fit(model, (small, clean), nn.MSELoss(), seed, steps=110, size=8)
    groups = [{"params": part.parameters()} for part in (model.conv1, model.conv2, model.conv3)]
    groups[2]["lr"] = 1e-4
    program.optimizer = torch.optim.Adam(groups, lr=1e-3)
    return program


def vanilla_vae(seed: int) -> Program:
    """The loss is a method of the model, and returns a mapping."""
    known = {"BaseVAE": nn.Module, "List": list, "Tensor": Tensor}
    model = classes("AntixK/PyTorch-VAE", "models/vanilla_vae.py", **known).VanillaVAE(3, 16, [16, 32, 512])
    x = images(16, 3)[0]
    x = 2 * (x - x.min()) / (x.max() - x.min()) - 1
    loss = lambda out, y: model.loss_function(*out, M_N=0.0025)["loss"]  # noqa: E731
    return fit(model, (x, x), loss, seed, rate=5e-3, steps=80, size=16)


def ts_mixer(seed: int) -> Program:
    """Four arguments, three of which the model does not use."""
    model = classes("thuml/Time-Series-Library", "models/TSMixer.py").Model(
        SimpleNamespace(
            task_name="long_term_forecast", seq_len=24, pred_len=12, enc_in=3, d_model=32, e_layers=2, dropout=0.1
        )
    )
    x = torch.stack([seasons(), seasons().roll(3, 1), 0.5 * seasons().flip(1)], 2)
    program = fit(model, (x[:, :24], x[:, 24:]), nn.MSELoss(), seed, rate=2e-3, steps=200)
    marks, later = torch.zeros(32, 24, 4), torch.zeros(32, 36, 4)
    program.batches = [((x, marks, torch.zeros(32, 36, 3), later), y) for x, y in program.batches]
    return program


def is_all_you_need(seed: int) -> Program:
    """Post-norm encoder and decoder with shared tables; the rate follows the repository's schedule."""
    repository = "jadore801120/attention-is-all-you-need-pytorch"
    found: dict[str, Any] = {}
    for path in ("Modules", "SubLayers", "Layers", "Models"):
        found |= vars(classes(repository, f"transformer/{path}.py", **found))
    model = found["Transformer"](
        10,
        10,
        0,
        0,
        d_word_vec=32,
        d_model=32,
        d_inner=64,
        n_layers=2,
        n_head=4,
        d_k=8,
        d_v=8,
        dropout=0.0,
        n_position=16,
    )
    x = torch.randint(2, 10, (1000, 5), generator=rng(161))
    target = torch.cat([torch.ones(1000, 1, dtype=torch.long), x.sort(1).values], 1)
    loss = lambda out, y: functional.cross_entropy(out, y.reshape(-1), ignore_index=0, label_smoothing=0.1)  # noqa: E731
    batches = [((a, b[:, :-1]), b[:, 1:]) for a, b in draw(x, target, 160, 32, seed)]
    program = Program(model, adam(model, 1e-3, betas=(0.9, 0.98), eps=1e-9), loss, batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        program.optimizer, lambda t: 40 * min((t + 1) ** -0.5, (t + 1) * 40**-1.5)
    )
    program.after_step = lambda program: schedule.step()
    return program


def n_beats(seed: int) -> Program:
    """The blocks are in lists of Python, their parameters in a list of the model; it also returns the past."""
    constants = {"SEASONALITY_BLOCK": "seasonality", "TREND_BLOCK": "trend", "GENERIC_BLOCK": "generic"}
    file = classes("philipperemy/n-beats", "nbeats_pytorch/model.py", Union=dict, Optimizer=torch.optim.Optimizer)
    network = file.NBeatsNet
    for name, kind in constants.items():
        setattr(network, name, kind)
    with contextlib.redirect_stdout(io.StringIO()):
        model = network(
            stack_types=("trend", "generic"), forecast_length=6, backcast_length=24, thetas_dim=(4, 8),
            nb_blocks_per_stack=2, hidden_layer_units=32,
        )  # fmt: skip
    x = seasons() / 2
    program = fit(model, (x[:, :24], x[:, 24:30]), nn.MSELoss(), seed, rate=2e-3, steps=200)
    program.before_loss = lambda out: out[1]
    return program


def vocoder(seed: int) -> Program:
    """From 80 bands to a wave of 128 samples; the loss compares spectra."""
    known = {
        "LRELU_SLOPE": 0.1,
        "get_padding": lambda size, wide=1: (size * wide - wide) // 2,
        "init_weights": lambda module: module.weight.data.normal_(0, 0.01) if "Conv" in type(module).__name__ else None,
    }
    options = SimpleNamespace(
        resblock="2", upsample_rates=[4, 4], upsample_kernel_sizes=[8, 8], upsample_initial_channel=32,
        resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
    )  # fmt: skip
    model = classes("jik876/hifi-gan", "models.py", **known).Generator(options)
    r = rng(162)
    pitch, phase = 0.1 + torch.rand(400, 1, generator=r), 6.28 * torch.rand(400, 1, generator=r)
    wave = 0.7 * (pitch * torch.arange(128) + phase).sin()
    mix = torch.rand(80, 17, generator=r) / 17

    def spectrum(wave: Tensor) -> Tensor:
        return torch.stft(wave, 32, 16, window=torch.hann_window(32), return_complex=True).abs()

    bands = ((mix @ spectrum(wave))[..., :8] + 1e-3).log()
    loss = lambda out, y: 45 * functional.l1_loss(spectrum(out[:, 0]), spectrum(y))  # noqa: E731
    program = fit(model, (bands, wave), loss, seed, steps=120, size=16)
    program.optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.8, 0.99))
    return program


def tab_net(seed: int) -> Program:
    """Masks from a sparse softmax; the model returns a penalty beside its scores."""
    folder = "pytorch_tabnet"
    sparse = classes("dreamquark-ai/tabnet", f"{folder}/sparsemax.py", Function=torch.autograd.Function)
    sparse.sparsemax = sparse.SparsemaxFunction.apply
    layer = vars(sparse)["Sparsemax"]
    layer.forward.__globals__["sparsemax"] = sparse.sparsemax
    file = classes("dreamquark-ai/tabnet", f"{folder}/tab_network.py", sparsemax=sparse)
    model = file.TabNetNoEmbeddings(20, 4, virtual_batch_size=32, momentum=0.1, group_attention_matrix=torch.eye(20))
    loss = lambda out, y: functional.cross_entropy(out[0], y) - 1e-3 * out[1]  # noqa: E731
    return fit(model, four_classes(), loss, seed, rate=2e-2, steps=120, size=128)


def table_resnet(seed: int) -> Program:
    file = classes(
        "yandex-research/rtdl", "rtdl/modules.py", ModuleType=object, rtdlF=SimpleNamespace(reglu=None, geglu=None),
        _is_glu_activation=lambda activation: False,
    )  # fmt: skip
    model = file.ResNet.make_baseline(
        d_in=20, n_blocks=2, d_main=48, d_hidden=64, dropout_first=0.2, dropout_second=0.0, d_out=4
    )
    return fit(model, four_classes(), functional.cross_entropy, seed, rate=1e-3, optimiser=torch.optim.AdamW)


def conv_next(seed: int) -> Program:
    """Blocks that begin with a gain of a millionth, and weights with a spread of 0.02."""
    known = {"trunc_normal_": nn.init.trunc_normal_, "DropPath": nn.Dropout, "register_model": lambda make: make}
    model = classes("facebookresearch/ConvNeXt", "models/convnext.py", **known).ConvNeXt(
        3, 3, depths=[1, 1, 2, 1], dims=[12, 16, 24, 32]
    )
    x, y, *_ = scenes()
    x = functional.interpolate(x, scale_factor=2.0).expand(-1, 3, -1, -1)
    return fit(model, (x, y), nn.CrossEntropyLoss(), seed, rate=4e-3, optimiser=torch.optim.AdamW, weight_decay=0.05)


def dense_net_mixup(seed: int) -> Program:
    """Samples and losses are mixed as in the repository's loop."""
    file = classes("facebookresearch/mixup-cifar10", "models/densenet.py")
    loop = classes("facebookresearch/mixup-cifar10", "train.py")
    model = file.DenseNet(file.Bottleneck, [1, 2, 2, 1], growth_rate=6)
    program = fit(model, images(32, 3), nn.CrossEntropyLoss(), seed, steps=100, size=16)
    program.optimizer = sgd(model, 0.1, momentum=0.9, weight_decay=1e-4)

    def mixed(program: Program, x: Tensor, y: Tensor) -> Tensor:
        x, one, two, share = loop.mixup_data(x, y, 0.4, use_cuda=False)
        out = program.before_loss(program.model(x))
        return program.descend(loop.mixup_criterion(program.loss, out, one, two, share))

    program.own_step = mixed
    return program


def rainbow(seed: int) -> Program:
    """A distribution of returns for each of three actions, from screens; noise in the weights explores."""
    model = classes("Kaixhin/Rainbow", "model.py").DQN(
        SimpleNamespace(atoms=11, architecture="data-efficient", history_length=1, hidden_size=32, noisy_std=0.3), 3
    )
    x, y, *_ = scenes()
    x = functional.interpolate(x, size=(84, 84))
    values = torch.linspace(0, 1, 11)
    program = fit(model, (x, y), lambda out, y: out.mean(), seed, steps=300)
    program.optimizer, program.given_loss = adam(model, 1e-3, eps=1.5e-4), False

    def learn(program: Program, x: Tensor, y: Tensor) -> Tensor:
        model.reset_noise()
        with torch.no_grad():
            action = (model(x) * values).sum(2).argmax(1)
        reward = (action == y).long()
        loss = -model(x, log=True)[torch.arange(len(x)), action, 10 * reward].mean()
        program.extra["reward"] = float(reward.float().mean())
        return program.descend(loss)

    program.own_step, program.after_backward = learn, clip(10.0)
    return program


def s4_diagonal(seed: int) -> Program:
    """Long convolutions of a state space, with complex numbers inside."""
    layer = classes("state-spaces/s4", "models/s4/s4d.py", DropoutNd=nn.Dropout)
    known = {"S4D": layer.S4D, "dropout_fn": nn.Dropout, "args": SimpleNamespace(lr=1e-3)}
    model = classes("state-spaces/s4", "example.py", **known).S4Model(1, 4, d_model=24, n_layers=2, dropout=0.0)
    x, y = tones()
    program = fit(model, (x.transpose(1, 2), y), nn.CrossEntropyLoss(), seed, steps=160)
    rest = [p for p in model.parameters() if not hasattr(p, "_optim")]
    slow = [p for p in model.parameters() if hasattr(p, "_optim")]
    program.optimizer = torch.optim.AdamW(
        [{"params": rest, "weight_decay": 0.01}, {"params": slow, "weight_decay": 0.0, "lr": 1e-3}], lr=1e-2
    )
    return program


def mobile_net_v2(seed: int) -> Program:
    """52 convolutions."""
    model = classes("eladhoffer/convNet.pytorch", "models/mobilenet_v2.py").MobileNet_v2(0.25, num_classes=10)
    return fit(
        model, images(32, 3), nn.CrossEntropyLoss(), seed, rate=0.02, steps=110, size=32, optimiser=torch.optim.SGD,
        momentum=0.9, weight_decay=1e-4,
    )  # fmt: skip


def focal(seed: int) -> Program:
    """The repository's loss on classes of unequal shares."""
    loss = classes("clcarwin/focal_loss_pytorch", "focalloss.py", long=int).FocalLoss(gamma=2)
    x, y = four_classes()
    keep = (y == 0) | (torch.rand(len(y), generator=rng(163)) < 0.4)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))

    def quiet(out: Tensor, y: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return loss(out, y)

    return fit(
        model, (x[keep], y[keep]), quiet, seed, rate=0.1, optimiser=torch.optim.SGD, momentum=0.9, weight_decay=1e-4
    )


_PACE = ("rate_times_100", "rate_over_1000")

THIRD: dict[str, tuple[Callable[[int], Program], tuple[str, ...]]] = {
    "simple_vit": (simple_vit, (*_PACE, "softmax_in_the_loop", "frozen_layers", "labels_drawn_anew")),
    "graph_vae": (graph_vae, ("rate_over_1000", "never_cleared")),
    "sr_cnn": (sr_cnn, (*_PACE, "inputs_times_1000")),
    "vanilla_vae": (vanilla_vae, ("rate_over_1000", "in_eval_mode")),
    "ts_mixer": (ts_mixer, (*_PACE, "labels_shuffled", "schedule_per_batch")),
    "is_all_you_need": (is_all_you_need, (*_PACE, "forgotten_layers")),
    "n_beats": (n_beats, ("rate_over_1000", "labels_shuffled", "targets_times_1000")),
    "vocoder": (vocoder, ("rate_times_100", "rate_over_1000", "frozen_layers")),
    "tab_net": (tab_net, ("rate_over_1000", "labels_shuffled")),
    "table_resnet": (table_resnet, ("softmax_in_the_loop", "in_eval_mode", "decay_of_10", "labels_drawn_anew")),
    "conv_next": (conv_next, ("rate_over_1000", "forgotten_layers", "softmax_in_the_loop", "decay_of_10")),
    "dense_net_mixup": (dense_net_mixup, ("rate_over_1000", "softmax_in_the_loop", "forgotten_layers", "in_eval_mode")),
    "rainbow": (rainbow, ("rate_over_1000",)),
    "s4_diagonal": (s4_diagonal, ("rate_times_100", "rate_over_1000", "forgotten_layers", "labels_shuffled")),
    "mobile_net_v2": (mobile_net_v2, ("rate_over_1000", "frozen_layers", "labels_drawn_anew")),
    "focal": (focal, ("rate_times_100", "rate_over_1000", "labels_shuffled", "never_cleared")),
}
