"""A fourth group of models of public repositories, of 19 November 2026.  Faults were written down before any scoring.

`public.py` says how files are read.  Optimiser, rate and loss are those of the repository's script.  Where 100 to 400
steps are too few for its rate, the rate is larger: by 2 in `glow`, by 3 to 5 in `captions`, `llama`, `skip_grams` and
`lst_net`, by 10 or more in `masked_words`, `masked_pixels`, `functions` and `rotations_of_entities`.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, attr-defined, index, return-value"

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from fresh_2026_11 import fit
from judged_2026_11_19_pictures import scenes
from judged_2026_11_19_sequences import seasons
from public_files import adam, classes, images, sgd
from public_more import clip
from recipes import Program, chain_of_tokens, digits, draw, rng
from torch import Tensor, nn
from torch.nn import functional

DEVICE = torch.device("cpu")


def unit(x: Tensor) -> Tensor:
    return (x - x.min()) / (x.max() - x.min())


def large_scenes() -> tuple[Tensor, Tensor]:
    """Coloured pictures of 32 by 32, and the class of each pixel."""
    x, _, _, inside = scenes()
    x = functional.interpolate(x, scale_factor=2.0).expand(-1, 3, -1, -1).contiguous()
    return x, inside.long().repeat_interleave(2, 1).repeat_interleave(2, 2)


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────


def image_and_text(seed: int) -> Program:
    """Two encoders; a picture is paired with the words for its figure, row and column.  Rate of the paper."""
    model = classes("openai/CLIP", "clip/model.py").CLIP(32, 16, 2, 64, 4, 5, 16, 32, 2, 2)
    x, kind, where, _ = scenes()
    row, column = ((where[:, place] - 4).div(2).long().clamp(0, 3) for place in (0, 1))
    words = torch.stack([torch.zeros_like(kind), 1 + kind, 4 + row, 8 + column, torch.full_like(kind, 15)], 1)

    def loss(out: Any, y: Tensor) -> Tensor:
        return (functional.cross_entropy(out[0], y) + functional.cross_entropy(out[1], y)) / 2

    batches = [((a, b), torch.arange(24)) for a, b in draw(x.expand(-1, 3, -1, -1), words, 160, 24, seed)]
    optimiser = torch.optim.AdamW(model.parameters(), 5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    return Program(model, optimiser, loss, batches)


def supervised_contrast(seed: int) -> Program:
    """The repository's loss of two views and the labels, on a small network that ends in a unit vector."""
    loss = classes("HobbitLong/SupContrast", "losses.py").SupConLoss(temperature=0.07)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [
                part
                for a, b in ((1, 16), (16, 32))
                for part in (nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            ]
            self.encoder = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True), nn.Linear(32, 16))

        def forward(self, x: Tensor) -> Tensor:
            return functional.normalize(self.head(self.encoder(x)), dim=1)

    x, y = digits()
    r = rng(201 + seed)
    batches = [
        (torch.cat([a + 0.3 * torch.randn(a.shape, generator=r) for _ in range(2)]), b)
        for a, b in draw(x.view(-1, 1, 8, 8), y, 200, 48, seed)
    ]
    model = Encoder()
    optimiser = sgd(model, 0.05, momentum=0.9, weight_decay=1e-4)
    return Program(model, optimiser, lambda out, y: loss(torch.stack(out.chunk(2), 1), y), batches)


def vector_codes(seed: int) -> Program:
    """Two tables of codes, which are running means and no parameters."""
    known = {"dist_fn": SimpleNamespace(all_reduce=lambda x: None)}
    model = classes("rosinality/vq-vae-2-pytorch", "vqvae.py", **known).VQVAE(3, 32, 1, 16, 16, 32)
    x = 2 * unit(images(16, 3)[0]) - 1
    loss = lambda out, y: functional.mse_loss(out[0], y) + 0.25 * out[1].mean()  # noqa: E731
    return fit(model, (x, x), loss, seed, rate=3e-4, steps=220, size=16)


def glow(seed: int) -> Program:
    """The first call sets scales from the data; the model returns likelihoods, determinants and codes."""
    model = classes("rosinality/glow-pytorch", "model.py", logabs=lambda x: x.abs().log()).Glow(3, 2, 2)
    made = classes("rosinality/glow-pytorch", "train.py").calc_loss
    x = torch.floor(31 * unit(images(8, 3)[0])) / 32 - 0.5
    x = x + torch.rand(x.shape, generator=rng(202)) / 32
    program = fit(
        model, (x, x), lambda out, y: made(out[0], out[1].mean(), 8, 32)[0], seed, rate=2e-4, steps=150, size=16
    )
    with torch.no_grad():
        model(program.batches[0][0])
    return program


def radiance_field(seed: int) -> Program:
    """The loss renders rays through a volume; two balls of different colours are seen."""
    file = classes("yenchenlin/nerf-pytorch", "run_nerf_helpers.py")
    render = classes("yenchenlin/nerf-pytorch", "run_nerf.py").raw2outputs
    embed, wide = file.get_embedder(4)
    views, wide_views = file.get_embedder(2)
    model = file.NeRF(4, 64, wide, wide_views, skips=[2], use_viewdirs=True)
    r, many = rng(203), 1500
    start = functional.normalize(torch.randn(many, 3, generator=r), dim=1)
    ray = functional.normalize(-start + 0.3 * torch.randn(many, 3, generator=r), dim=1)
    depths = torch.linspace(0.2, 1.8, 24)
    points = start[:, None] + depths[:, None] * ray[:, None]
    inside = [(points - torch.tensor(middle)).norm(dim=2) < 0.35 for middle in ([0.35, 0.0, 0.0], [-0.35, 0.0, 0.2])]
    colours = torch.where(inside[0][..., None], torch.tensor([4.0, -4.0, -1.0]), torch.tensor([-4.0, 0.0, 4.0]))
    density = 20.0 * (inside[0] | inside[1]).float()
    drawn = lambda raw: render(raw, depths.expand(len(raw), -1), torch.ones(len(raw), 3) / 3**0.5)[0]  # noqa: E731
    y = drawn(torch.cat([colours, density[..., None]], 2))
    x = torch.cat([embed(points), views(ray[:, None].expand(-1, 24, -1))], 2)
    return fit(model, (x, y), lambda out, y: (drawn(out) - y).square().mean(), seed, rate=5e-4, steps=220, size=48)


def masked_pixels(seed: int) -> Program:
    """The model masks three quarters of a picture and returns its loss; two of its parameters are constants."""
    vit = classes("facebookresearch/dino", "vision_transformer.py", trunc_normal_=nn.init.trunc_normal_)
    places = classes("facebookresearch/mae", "util/pos_embed.py")
    places.get_2d_sincos_pos_embed.__globals__["np"] = SimpleNamespace(**{**vars(np), "float": float})

    def cut(size: int, patch: int, channels: int, wide: int) -> nn.Module:
        made = vit.PatchEmbed(size, patch, channels, wide)
        made.patch_size = (patch, patch)
        return made

    known = {"PatchEmbed": cut, "Block": vit.Block, "get_2d_sincos_pos_embed": places.get_2d_sincos_pos_embed}
    model = classes("facebookresearch/mae", "models_mae.py", **known).MaskedAutoencoderViT(16, 4, 3, 32, 2, 4, 32, 1, 4)
    x = images(16, 3)[0]
    program = fit(model, (x, x), lambda out, y: out[0], seed, rate=2e-3, steps=200)
    program.optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.05)
    return program


def e_net(seed: int) -> Program:
    """28 bottlenecks with indices of pooling; four classes of pixels."""
    model = classes("davidtvs/PyTorch-ENet", "models/enet.py").ENet(4)
    return fit(model, large_scenes(), nn.CrossEntropyLoss(), seed, rate=5e-4, steps=60, size=10, weight_decay=2e-4)


def dn_cnn(seed: int) -> Program:
    """The noise is learned; the gains of the norms begin near 0.025."""
    model = classes("SaoYan/DnCNN-PyTorch", "models.py").DnCNN(1, 5)
    model.apply(classes("SaoYan/DnCNN-PyTorch", "utils.py", math=math).weights_init_kaiming)
    noise = 25 / 255 * torch.randn(1797, 1, 16, 16, generator=rng(204))
    x = unit(images(16)[0]) + noise
    loss = lambda out, y: functional.mse_loss(out, y, reduction="sum") / (2 * len(y))  # noqa: E731
    return fit(model, (x, noise), loss, seed, rate=1e-3, steps=90, size=12)


def prototypes(seed: int) -> Program:
    """Five classes an episode; the first five samples of each are its prototype."""
    repository = "orobix/Prototypical-Networks-for-Few-shot-Learning-PyTorch"
    model = classes(repository, "src/protonet.py").ProtoNet(1, 16, 16)
    loss = classes(repository, "src/prototypical_loss.py").prototypical_loss
    x, y = images(28)
    r, batches = rng(205 + seed), []
    for _ in range(100):
        kinds = torch.randperm(10, generator=r)[:5]
        places = torch.cat([(y == k).nonzero()[:, 0][torch.randint(170, (8,), generator=r)] for k in kinds])
        batches.append((x[places], y[places]))
    return Program(model, adam(model, 1e-3), lambda out, y: loss(out, y, 5)[0], batches)


def conv_mixer(seed: int) -> Program:
    """The rate goes up and down, as in the repository."""
    model = classes("locuslab/convmixer-cifar10", "train.py").ConvMixer(32, 4, kernel_size=5, patch_size=2)
    program = fit(model, images(16, 3), nn.CrossEntropyLoss(), seed, steps=140)
    program.optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.01)
    turn = lambda t: float(np.interp(t + 1, [0, 56, 112, 141], [0, 1, 0.05, 0]))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(program.optimizer, turn)
    program.after_step = lambda program: schedule.step()
    return program


def wasserstein(seed: int) -> Program:
    """The critic of two networks, with a penalty on its gradients; its loss is negative, then rises to zero."""
    known = {"opt": SimpleNamespace(latent_dim=16), "img_shape": (1, 8, 8), "Tensor": torch.FloatTensor}
    file = classes("eriklindernoren/PyTorch-GAN", "implementations/wgan_gp/wgan_gp.py", **known)
    model, maker = file.Discriminator(), file.Generator()
    second = adam(maker, 2e-4, betas=(0.5, 0.999))
    x = 2 * unit(images(8)[0]) - 1
    program = Program(
        model, adam(model, 2e-4, betas=(0.5, 0.999)), lambda out, y: out.mean(), draw(x, x, 200, 64, seed)
    )
    program.given_loss = False

    def play(program: Program, real: Tensor, y: Tensor) -> Tensor:
        made = maker(torch.randn(len(real), 16))
        loss = -model(real).mean() + model(made).mean()
        loss = program.descend(loss + 10 * file.compute_gradient_penalty(model, real.data, made.data))
        program.extra["step"] = program.extra.get("step", 0) + 1
        if program.extra["step"] % 5 == 0:
            second.zero_grad()
            (-model(maker(torch.randn(len(real), 16))).mean()).backward()
            second.step()
        return loss

    program.own_step = play
    return program


# ── sequences, sound and words ──────────────────────────────────────────────────────────────────────


def two_voices(seed: int) -> Program:
    """A mixture of two waves is taken apart; the loss is the ratio of signal and noise for the better order."""
    utils = classes("kaituoxu/Conv-TasNet", "src/utils.py")
    file = classes("kaituoxu/Conv-TasNet", "src/conv_tasnet.py", overlap_and_add=utils.overlap_and_add, EPS=1e-8)
    made = classes("kaituoxu/Conv-TasNet", "src/pit_criterion.py", EPS=1e-8).cal_loss
    model = file.ConvTasNet(32, 8, 16, 32, 3, 3, 1, 2)
    r, time = rng(206), torch.arange(128)
    turn = 6.28 * torch.rand(600, 2, 1, generator=r)
    pitch = torch.tensor([[0.15], [0.9]]) + 0.2 * torch.rand(600, 2, 1, generator=r)
    y = (turn + pitch * time).sin() * (0.5 + torch.rand(600, 2, 1, generator=r))
    lengths = torch.full((16,), 128)
    loss = lambda out, y: made(y, out, lengths[: len(y)])[0]  # noqa: E731
    program = fit(model, (y.sum(1), y), loss, seed, rate=1e-3, steps=110, size=16)
    program.after_backward = clip(5.0)
    return program


def speakers(seed: int) -> Program:
    """Filters that are learned by two frequencies each, in hertz."""
    file = classes("mravanelli/SincNet", "dnn_models.py")
    cnn = file.SincNet({
        "input_dim": 400, "fs": 16000, "cnn_N_filt": [16, 16], "cnn_len_filt": [51, 5], "cnn_max_pool_len": [3, 3],
        "cnn_use_laynorm_inp": True, "cnn_use_batchnorm_inp": False, "cnn_use_laynorm": [True, True],
        "cnn_use_batchnorm": [False, False], "cnn_act": ["leaky_relu"] * 2, "cnn_drop": [0.0, 0.0],
    })  # fmt: skip
    layers = {"fc_drop": [0.0], "fc_use_laynorm_inp": False, "fc_use_batchnorm_inp": False}
    one = file.MLP({
        "input_dim": cnn.out_dim, "fc_lay": [48], "fc_use_batchnorm": [True], "fc_use_laynorm": [False],
        "fc_act": ["leaky_relu"], **layers, "fc_use_laynorm_inp": True,
    })  # fmt: skip
    two = file.MLP({
        "input_dim": 48, "fc_lay": [6], "fc_use_batchnorm": [False], "fc_use_laynorm": [False],
        "fc_act": ["softmax"], **layers,
    })  # fmt: skip
    r = rng(207)
    y = torch.randint(6, (800,), generator=r)
    tone = (200 + 150 * y + 40 * torch.randn(800, generator=r))[:, None]
    turn = 6.28 * torch.arange(400) / 16000
    x = (turn * tone).sin() + 0.5 * (2.7 * turn * tone).sin() + 0.3 * torch.randn(800, 400, generator=r)
    return fit(
        nn.Sequential(cnn, one, two), (x, y), nn.NLLLoss(), seed, rate=1e-3, steps=150, size=32,
        optimiser=torch.optim.RMSprop, alpha=0.95, eps=1e-8,
    )  # fmt: skip


def captions(seed: int) -> Program:
    """A cell looks at a grid of patches for each word; it returns scores, targets and its glances."""
    file = classes("sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning", "models.py", device=DEVICE)
    model = file.DecoderWithAttention(32, 24, 48, 16, encoder_dim=24, dropout=0.2)
    x, kind, where, _ = scenes()
    row, column = ((where[:, place] - 4).div(2).long().clamp(0, 3) for place in (0, 1))
    words = torch.stack([torch.zeros_like(kind), 1 + kind, 4 + row, 8 + column, torch.full_like(kind, 15)], 1)
    grid = x.view(-1, 4, 4, 4, 4).permute(0, 1, 3, 2, 4).reshape(-1, 4, 4, 16)
    bright, place = grid.mean(3, keepdim=True), torch.eye(4).expand(len(grid), 4, -1, -1)
    grid = torch.cat([grid, bright * place, bright * place.transpose(1, 2)], 3)

    def loss(out: Any, y: Tensor) -> Tensor:
        scores, told, _, glances, _ = out
        words = functional.cross_entropy(scores.flatten(0, 1), told[:, 1:].flatten())
        return words + (1 - glances.sum(1)).square().mean()

    five = torch.full((32, 1), 5)
    batches = [((a, b, five), b) for a, b in draw(grid, words, 350, 32, seed)]
    program = Program(model, adam(model, 2e-3), loss, batches)
    program.after_backward = lambda program: nn.utils.clip_grad_value_(program.model.parameters(), 5.0)
    return program


def masked_words(seed: int) -> Program:
    """Two tasks: hidden words, and whether the second half follows.  Half of the texts have words of their own."""
    found: dict[str, Any] = {}
    for path in (
        "attention/single", "attention/multi_head", "embedding/position", "embedding/segment", "embedding/token",
        "embedding/bert", "utils/gelu", "utils/layer_norm", "utils/sublayer", "utils/feed_forward", "transformer",
        "bert", "language_model",
    ):  # fmt: skip
        found |= vars(classes("codertimo/BERT-pytorch", f"bert_pytorch/model/{path}.py", **found))
    model = found["BERTLM"](found["BERT"](52, 32, 2, 4, 0.0), 52)
    whole = 3 + chain_of_tokens() + 24 * (torch.arange(512) % 2)[:, None]
    r = rng(208 + seed)
    batches: list[Any] = []
    for _ in range(400):
        place = torch.randint(len(whole), (32,), generator=r)
        follows = torch.randint(2, (32,), generator=r)
        other = whole[torch.randint(len(whole), (32,), generator=r), 8:16]
        x = torch.cat([whole[place, :8], torch.where(follows[:, None] == 1, whole[place, 8:16], other)], 1)
        hidden = torch.rand(x.shape, generator=r) < 0.15
        label = torch.where(hidden, x, 0)
        parts = torch.ones_like(x)
        parts[:, 8:] = 2
        batches.append(((torch.where(hidden, 1, x), parts), (follows, label)))
    hidden_words = nn.NLLLoss(ignore_index=0)
    loss = lambda out, y: functional.nll_loss(out[0], y[0]) + hidden_words(out[1].transpose(1, 2), y[1])  # noqa: E731
    return Program(model, adam(model, 1e-3, weight_decay=0.01), loss, batches)


def llama(seed: int) -> Program:
    """The model gets the targets and keeps its loss; embedding and output share weights."""
    file = classes("karpathy/llama2.c", "model.py")
    options = file.ModelArgs(dim=32, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=24, multiple_of=16, max_seq_len=16)
    model, x = file.Transformer(options), chain_of_tokens()
    batches = [((a, b), b) for a, b in draw(x[:, :-1], x[:, 1:].contiguous(), 200, 16, seed)]
    loss = lambda out, y: functional.cross_entropy(out.view(-1, 24), y.view(-1), ignore_index=-1)  # noqa: E731
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    program = Program(model, optimiser, loss, batches)
    program.after_backward = clip(1.0)
    return program


def skip_grams(seed: int) -> Program:
    """Two tables of vectors that begin near zero; the model draws words and returns its loss."""
    file = classes("theeluwin/pytorch-sgns", "model.py")
    model = file.SGNS(file.Word2Vec(25, 16), 25, 5)
    line = 1 + chain_of_tokens().flatten()
    near = torch.stack([line[:-2], line[2:]], 1)
    batches = draw(line[1:-1], near, 400, 256, seed)
    return Program(model, adam(model, 5e-3), lambda out, y: out, [((a, b), b) for a, b in batches])


def lst_net(seed: int) -> Program:
    """A sigmoid at the end, for series between nothing and one; absolute errors, added."""
    options = SimpleNamespace(
        cuda=False, window=24, hidRNN=24, hidCNN=24, hidSkip=4, CNN_kernel=6, skip=6, highway_window=12, dropout=0.2,
        output_fun="sigmoid",
    )  # fmt: skip
    model = classes("laiguokun/LSTNet", "models/LSTNet.py").Model(options, SimpleNamespace(m=3))
    model.pt = int(model.pt)
    x = unit(torch.stack([seasons(), seasons().roll(3, 1), 0.5 * seasons().flip(1)], 2))
    loss = nn.L1Loss(reduction="sum")
    program = fit(model, (x[:, :24], x[:, 26]), loss, seed, rate=3e-3, steps=250)
    program.after_backward = clip(10.0)
    return program


# ── graphs, sets, tables, physics, control ──────────────────────────────────────────────────────────


def graph_shapes(seed: int) -> Program:
    """A list of graphs is the input: rings, stars and pairs of clusters with added edges."""
    part = classes("weihua916/powerful-gnns", "models/mlp.py").MLP
    model = classes("weihua916/powerful-gnns", "models/graphcnn.py", MLP=part).GraphCNN(
        3, 2, 8, 16, 3, 0.2, True, "sum", "sum", DEVICE
    )
    r, made = rng(209), []
    for _ in range(300):
        kind, many = (int(torch.randint(*ends, (), generator=r)) for ends in ((0, 3), (8, 13)))
        near = torch.rand(many, many, generator=r) < 0.12
        place = torch.arange(many)
        if kind == 0:
            near[place, (place + 1) % many] = True
        elif kind == 1:
            near[0, 1:] = True
        else:
            half = place < many // 2
            near |= (half[:, None] == half) & (torch.rand(many, many, generator=r) < 0.5)
        near = (near | near.T) & ~torch.eye(many, dtype=torch.bool)
        features = functional.one_hot(near.sum(1).clamp(max=7), 8).float()
        made.append((SimpleNamespace(g=range(many), edge_mat=near.nonzero().T, node_features=features), kind))
    batches = []
    for _ in range(120):
        chosen = [made[place] for place in torch.randint(300, (24,), generator=r).tolist()]
        batches.append(([graph for graph, _ in chosen], torch.tensor([kind for _, kind in chosen])))
    return Program(model, adam(model, 1e-2), nn.CrossEntropyLoss(), batches)


def traffic(seed: int) -> Program:
    """Nine sensors of a ring, each of which hears its neighbours later."""
    model = classes("FelixOpolka/STGCN-PyTorch", "stgcn.py").STGCN(9, 1, 12, 3)
    r = rng(210)
    source = functional.avg_pool1d(torch.randn(500, 9, 40, generator=r), 5, 1)
    line = sum(0.8**far * source.roll(far, 1).roll(2 * far, 2) for far in range(4))[:, :, 8:23]
    line = line / line.std()
    place = torch.arange(9)
    near = torch.eye(9)
    near[place, place - 1] = near[place - 1, place] = 1.0
    x, y = line[:, :, :12, None].contiguous(), line[:, :, 12:]
    batches = [((near / 3, a), b) for a, b in draw(x, y, 100, 24, seed)]
    return Program(model, adam(model, 1e-3), nn.MSELoss(), batches)


def next_items(seed: int) -> Program:
    """Arrays of NumPy are the input; two scores are returned, of the next item and of another."""
    options = SimpleNamespace(
        device="cpu", norm_first=False, hidden_units=32, maxlen=16, dropout_rate=0.2, num_blocks=2, num_heads=1
    )
    model = classes("pmixer/SASRec.pytorch", "python/model.py").SASRec(512, 24, options)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_normal_(parameter.data)
    model.pos_emb.weight.data[0, :] = model.item_emb.weight.data[0, :] = 0
    x, r = 1 + chain_of_tokens(), rng(211 + seed)

    def loss(out: Any, y: Tensor) -> Tensor:
        yes = functional.binary_cross_entropy_with_logits(out[0][y], torch.ones(int(y.sum())))
        return yes + functional.binary_cross_entropy_with_logits(out[1][y], torch.zeros(int(y.sum())))

    batches = []
    for a, b in draw(x[:, :-1], x[:, 1:], 300, 32, seed):
        far = torch.randint(1, 25, b.shape, generator=r)
        batches.append(((np.arange(32), a.numpy(), b.numpy(), torch.where(far == b, 1 + b % 24, far).numpy()), b > 0))
    return Program(model, adam(model, 1e-3, betas=(0.9, 0.98)), loss, batches)


def rotations_of_entities(seed: int) -> Program:
    """Bare parameters, no module; entities on a ring, each relation a turn."""
    path = "codes/model.py"
    model = classes("DeepGraphLearning/KnowledgeGraphEmbedding", path).KGEModel(
        "RotatE", 30, 4, 16, 6.0, double_entity_embedding=True
    )
    kept = [p for p in model.parameters() if p.requires_grad]
    r = rng(212 + seed)
    head, turn = torch.randint(30, (250, 128), generator=r), torch.randint(4, (250, 128), generator=r)
    tail = (head + torch.tensor([1, 3, 7, 11])[turn]) % 30
    far = torch.randint(30, (250, 128, 8), generator=r)
    batches = [(torch.stack(parts, 1), wrong) for *parts, wrong in zip(head, turn, tail, far, strict=True)]
    program = Program(model, torch.optim.Adam(kept, 1e-2), lambda out, y: out.mean(), batches, given_loss=False)

    def learn(program: Program, x: Tensor, y: Tensor) -> Tensor:
        wrong = model((x, y), mode="tail-batch")
        wrong = (wrong.softmax(1).detach() * functional.logsigmoid(-wrong)).sum(1)
        return program.descend(-(functional.logsigmoid(model(x)).mean() + wrong.mean()) / 2)

    program.own_step = learn
    return program


def clusters_of_sets(seed: int) -> Program:
    """Parameters of four clusters for each set of points; the loss is the likelihood of the set."""
    found = classes("juho-lee/set_transformer", "modules.py")
    model = classes("juho-lee/set_transformer", "models.py", **vars(found)).SetTransformer(2, 4, 5, 8, 32)
    several = classes("juho-lee/set_transformer", "mixture_of_mvns.py")
    normal = classes("juho-lee/set_transformer", "mvn_diag.py", MultivariateNormal=several.MultivariateNormal)
    one = normal.MultivariateNormalDiag(2)
    mixture = several.MixtureOfMVNs(one)
    torch.manual_seed(seed)
    x = mixture.sample(600, 40, 4)
    return fit(model, (x, x), lambda out, y: -mixture.log_prob(y, *one.parse(out)), seed, rate=1e-3, steps=150, size=16)


def functions(seed: int) -> Program:
    """The model returns three distributions; waves of different heights are continued from a few points."""
    parts = classes("EmilienDupont/neural-processes", "models.py")
    model = classes("EmilienDupont/neural-processes", "neural_process.py", **vars(parts)).NeuralProcess(
        1, 1, 32, 32, 32
    )
    trainer = classes("EmilienDupont/neural-processes", "training.py").NeuralProcessTrainer
    r = rng(213 + seed)
    batches = []
    for _ in range(260):
        x = 6.28 * torch.rand(16, 24, 1, generator=r) - 3.14
        y = 2 * (torch.rand(16, 1, 1, generator=r) - 0.5) * (x - torch.rand(16, 1, 1, generator=r)).sin()
        batches.append(((x[:, :8].contiguous(), y[:, :8].contiguous(), x, y), y))
    return Program(model, adam(model, 1e-3), lambda out, y: trainer._loss(None, out[0], y, *out[1:]), batches)


def splines(seed: int) -> Program:
    """Layers without activations between them, whose weights are splines."""
    model = classes("Blealtan/efficient-kan", "src/efficient_kan/kan.py", math=math).KAN([64, 32, 10])
    x, y = digits()
    program = fit(model, (2 * unit(x) - 1, y), nn.CrossEntropyLoss(), seed, steps=150, size=64)
    program.optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-4)
    return program


def survival(seed: int) -> Program:
    """Times and whether an event was seen; only the order of risks matters."""
    file = classes("czifan/DeepSurv.pytorch", "networks.py")
    model = file.DeepSurv({"drop": 0.1, "norm": True, "dims": [10, 16, 1], "activation": "SELU"})
    loss = file.NegativeLogLikelihood({"l2_reg": 0})
    r = rng(214)
    x = torch.randn(800, 10, generator=r)
    risk = 1.5 * x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3]
    time = -torch.rand(800, generator=r).log() / risk.exp()
    y = torch.stack([time.clamp(max=3.0), (time < 3.0).float()], 1)
    return fit(model, (x, y), lambda out, y: loss(out, y[:, :1], y[:, 1:], model), seed, rate=3e-3, steps=200, size=128)


def hamiltonian(seed: int) -> Program:
    """The derivative of the output is compared with the motion of a spring."""
    tools = classes("greydanus/hamiltonian-nn", "utils.py")
    nets = classes("greydanus/hamiltonian-nn", "nn_models.py", choose_nonlinearity=tools.choose_nonlinearity)
    file = classes("greydanus/hamiltonian-nn", "hnn.py", MLP=nets.MLP)
    model = file.HNN(2, nets.MLP(2, 64, 2, "tanh"))
    r = rng(215)
    x = 2 * torch.rand(1500, 2, generator=r) - 1
    y = 2 * torch.stack([x[:, 1], -x[:, 0]], 1) + 0.05 * torch.randn(1500, 2, generator=r)
    program = fit(model, (x, y), nn.MSELoss(), seed, steps=300, size=64)
    program.optimizer, program.given_loss = adam(model, 1e-3, weight_decay=1e-4), False

    def learn(program: Program, x: Tensor, y: Tensor) -> Tensor:
        return program.descend((y - model.time_derivative(x.clone().requires_grad_())).square().mean())

    program.own_step = learn
    return program


def twin_critics(seed: int) -> Program:
    """Critics of a point that is pushed to the middle; the policy has an optimiser of its own."""
    agent = classes("sfujim/TD3", "TD3.py", device=DEVICE).TD3(2, 1, 1.0)
    r = rng(216)
    state, action = 2 * torch.rand(3000, 2, generator=r) - 1, 2 * torch.rand(3000, 1, generator=r) - 1
    ahead = torch.cat([state[:, :1] + 0.3 * state[:, 1:], (state[:, 1:] + 0.3 * action).clamp(-1, 1)], 1).clamp(
        -1.5, 1.5
    )
    reward = -ahead[:, :1].square()
    more = torch.cat([ahead, reward, (torch.rand(3000, 1, generator=r) > 0.1).float()], 1)
    batches = [((a[:, :2], a[:, 2:]), b) for a, b in draw(torch.cat([state, action], 1), more, 300, 64, seed)]
    program = Program(agent.critic, agent.critic_optimizer, lambda out, y: out[0].mean(), batches, given_loss=False)

    def learn(program: Program, x: Any, y: Tensor) -> Tensor:
        ahead, reward, goes_on = y[:, :2], y[:, 2:3], y[:, 3:]
        with torch.no_grad():
            goal = reward + goes_on * 0.99 * torch.min(*agent.critic_target(ahead, agent.actor_target(ahead)))
            loss = sum(functional.mse_loss(one, goal) for one in agent.critic(*x))
        agent.train(SimpleNamespace(sample=lambda size: (*x, ahead, reward, goes_on)), len(y))
        return loss

    program.own_step = learn
    return program


def clipped_policy(seed: int) -> Program:
    """The model's own call is not defined; policy and values are asked by methods.  The reward is logged."""
    agent = classes("nikhilbarhate99/PPO-PyTorch", "PPO.py", device=DEVICE).PPO(4, 3, 3e-4, 1e-3, 0.99, 4, 0.2, False)
    model = agent.policy
    batches = [(torch.randn(64, 4), None) for _ in range(120)]
    program = Program(model, agent.optimizer, lambda out, y: out.mean(), batches, given_loss=False)

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        action, before, value = agent.policy_old.act(x)
        reward = (action == x[:, :3].argmax(1)).float()
        program.extra["reward"] = float(reward.mean())
        scaled = (reward - reward.mean()) / (reward.std() + 1e-7)
        ahead, loss = scaled - value[:, 0], torch.zeros(())
        for _ in range(agent.K_epochs):
            after, values, spread = model.evaluate(x, action)
            ratio = (after - before).exp()
            surrogate = torch.min(ratio * ahead, ratio.clamp(0.8, 1.2) * ahead)
            loss = program.descend((-surrogate + 0.5 * agent.MseLoss(values[:, 0], scaled) - 0.01 * spread).mean())
        agent.policy_old.load_state_dict(model.state_dict())
        return loss

    program.own_step = act
    return program


_PACE = ("rate_times_100", "rate_over_1000")

FOURTH: dict[str, tuple[Callable[[int], Program], tuple[str, ...]]] = {
    "image_and_text": (image_and_text, ("rate_times_100", "forgotten_layers")),
    "supervised_contrast": (supervised_contrast, ("rate_over_1000", "labels_shuffled")),
    "vector_codes": (vector_codes, ("rate_over_1000",)),
    "glow": (glow, ("never_cleared",)),
    "radiance_field": (radiance_field, ("never_cleared", "frozen_layers")),
    "masked_pixels": (masked_pixels, ("rate_over_1000",)),
    "e_net": (e_net, ("labels_drawn_anew", "frozen_layers")),
    "dn_cnn": (dn_cnn, ("targets_times_1000", "in_eval_mode")),
    "prototypes": (prototypes, ("labels_shuffled",)),
    "conv_mixer": (conv_mixer, ("softmax_in_the_loop", "forgotten_layers", "decay_of_10")),
    "wasserstein": (wasserstein, ()),
    "two_voices": (two_voices, ("forgotten_layers", "rate_over_1000")),
    "speakers": (speakers, ("rate_over_1000", "labels_shuffled")),
    "captions": (captions, ("rate_over_1000", "forgotten_layers")),
    "masked_words": (masked_words, ("dropout_of_97", "frozen_layers")),
    "llama": (llama, ("rate_over_1000", "weights_times_30", "softmax_in_the_loop")),
    "skip_grams": (skip_grams, ("rate_over_1000",)),
    "lst_net": (lst_net, ("rate_times_100", "labels_shuffled")),
    "graph_shapes": (graph_shapes, ("softmax_in_the_loop", "labels_shuffled")),
    "traffic": (traffic, ("rate_over_1000", "targets_times_1000", "schedule_per_batch")),
    "next_items": (next_items, _PACE),
    "rotations_of_entities": (rotations_of_entities, ("rate_over_1000",)),
    "clusters_of_sets": (clusters_of_sets, ("rate_times_100", "schedule_per_batch")),
    "functions": (functions, ("rate_over_1000", "never_cleared")),
    "splines": (splines, ("softmax_in_the_loop", "labels_drawn_anew", "inputs_times_1000")),
    "survival": (survival, ("labels_shuffled",)),
    "hamiltonian": (hamiltonian, ("rate_over_1000",)),
    "twin_critics": (twin_critics, ()),
    "clipped_policy": (clipped_policy, ()),
}
