"""More models of public repositories, added on 18 November 2026.  Their faults were written down before any scoring.

`public.py` says how files are read; it holds both lists.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item"

from types import SimpleNamespace
from typing import Any

import torch
from public_files import adam, classes, images, sgd
from recipes import Program, chain_of_tokens, draw, graph, mlp, rng
from torch import Tensor, nn
from torch.nn import functional


def own_loss(out: Any, y: Any) -> Tensor:
    """The loss that the model returns beside its output."""
    return out[1]


def words(many: int, long: int, classes: int) -> tuple[Tensor, Tensor]:
    """Sentences of 40 words, each of which speaks for one class."""
    r = rng(51)
    y = torch.randint(classes, (many,), generator=r)
    x = torch.randint(1, 40, (many, long), generator=r)
    told = torch.rand(many, long, generator=r) < 0.4
    return torch.where(told, 1 + y[:, None] + classes * (x % (39 // classes)), x), y


def clicks(fields: tuple[int, ...], many: int = 3000) -> tuple[Tensor, Tensor]:
    r = rng(52)
    x = torch.stack([torch.randint(size, (many,), generator=r) for size in fields], 1)
    tables = [torch.randn(size, 3, generator=r) for size in fields]
    first, second = (table[x[:, place]] for place, table in enumerate(tables[:2]))
    return x, ((first * second).sum(1) + sum(table[x[:, n], 0] for n, table in enumerate(tables)) > 0).float()


def clip(norm: float) -> Any:
    return lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), norm)


# ── development ─────────────────────────────────────────────────────────────────────────────────────


def makemore(seed: int) -> Program:
    """The model is given the targets and returns its loss."""
    file = classes("karpathy/makemore", "makemore.py")
    config = SimpleNamespace(block_size=16, vocab_size=24, n_layer=2, n_embd=32, n_embd2=32, n_head=4)
    model, x = file.Transformer(config), chain_of_tokens()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01, betas=(0.9, 0.99))
    batches = [((a, b), b) for a, b in draw(x[:, :-1], x[:, 1:].contiguous(), 150, 16, seed)]
    return Program(model, optimiser, own_loss, batches)


def wide_resnet(seed: int) -> Program:
    model = classes("xternalz/WideResNet-pytorch", "wideresnet.py").WideResNet(10, 10)
    x, y = images(32, 3)
    optimiser = sgd(model, 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 110, 8, seed))


def py_gat(seed: int) -> Program:
    """The layers hold bare parameters."""
    layers = classes("Diego999/pyGAT", "layers.py")
    file = classes("Diego999/pyGAT", "models.py", GraphAttentionLayer=layers.GraphAttentionLayer)
    known = graph(seed)
    (x, y), adjacency = known.batches[0], known.model.adjacency
    model = file.GAT(16, 8, 3, dropout=0.3, alpha=0.2, nheads=4)
    return Program(model, adam(model, 5e-3, weight_decay=5e-4), functional.nll_loss, [((x, adjacency), y)] * 120)


def cnn_text(seed: int) -> Program:
    options = SimpleNamespace(
        embed_num=40, embed_dim=32, class_num=3, kernel_num=16, kernel_sizes=[3, 4, 5], dropout=0.5, static=False
    )
    model = classes("Shawn1993/cnn-text-classification-pytorch", "model.py").CNN_Text(options)
    x, y = words(800, 12, 3)
    return Program(model, adam(model, 1e-3), functional.cross_entropy, draw(x, y, 200, 32, seed))


def point_net_public(seed: int) -> Program:
    """1.6 million weights; the model returns a tuple with None in it."""
    model = classes("fxia22/pointnet.pytorch", "pointnet/model.py").PointNetCls(3)
    r = rng(53)
    y = torch.randint(3, (300,), generator=r)
    turned = functional.normalize(torch.randn(300, 3, 24, generator=r), dim=1)
    flat = torch.cat([turned[:, :2], 0.1 * turned[:, 2:]], 1)
    x = torch.where((y == 0)[:, None, None], turned, torch.where((y == 1)[:, None, None], flat, turned.sign()))
    program = Program(model, adam(model, 1e-3), functional.nll_loss, draw(x, y, 60, 16, seed))
    program.before_loss = lambda out: out[0]
    return program


def deep_fm(seed: int) -> Program:
    """Probabilities and nn.BCELoss."""
    layer = classes("rixwew/pytorch-fm", "torchfm/layer.py")
    model = classes("rixwew/pytorch-fm", "torchfm/model/dfm.py", **vars(layer)).DeepFactorizationMachineModel(
        (12, 12, 8), embed_dim=8, mlp_dims=(16, 16), dropout=0.2
    )
    x, y = clicks((12, 12, 8))
    return Program(model, adam(model, 5e-3, weight_decay=1e-6), nn.BCELoss(), draw(x, y, 200, 128, seed))


def siren_net(seed: int) -> Program:
    model = classes("lucidrains/siren-pytorch", "siren_pytorch/siren_pytorch.py").SirenNet(2, 48, 1, 3)
    x = 2 * torch.rand(1500, 2, generator=rng(54)) - 1
    y = torch.sin(6 * x[:, :1]) * torch.cos(4 * x[:, 1:])
    return Program(model, adam(model, 1e-3), nn.MSELoss(), draw(x, y, 250, 128, seed))


def tutorial_gan(seed: int) -> Program:
    """The discriminator of the tutorial's two networks, with their losses and rates."""
    model = nn.Sequential(mlp(64, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2)), nn.Sigmoid())
    other = nn.Sequential(mlp(16, 64, 64, 64), nn.Tanh())
    second = adam(other, 2e-4)
    x = images(8)[0].flatten(1)
    x = 2 * (x - x.min()) / (x.max() - x.min()) - 1
    batches = [(part, torch.ones(len(part), 1)) for part, _ in draw(x, torch.zeros(len(x)), 200, 64, seed)]
    program = Program(model, adam(model, 2e-4), nn.BCELoss(), batches)

    def play(program: Program, real: Tensor, one: Tensor) -> Tensor:
        loss = program.loss(program.model(real), one)
        loss = loss + program.loss(program.model(other(torch.randn(len(real), 16))), 0 * one)
        program.optimizer.zero_grad()
        second.zero_grad()
        loss.backward()
        program.optimizer.step()
        made = program.loss(program.model(other(torch.randn(len(real), 16))), one)
        program.optimizer.zero_grad()
        second.zero_grad()
        made.backward()
        second.step()
        return loss

    program.own_step = play
    return program


def char_rnn(seed: int) -> Program:
    """One call of the model for each character; the losses are added."""
    model = classes("spro/char-rnn.pytorch", "model.py").CharRNN(24, 48, 24, "gru", 2)
    x = chain_of_tokens()
    program = Program(
        model, adam(model, 1e-2), nn.CrossEntropyLoss(), draw(x[:, :-1], x[:, 1:], 110, 16, seed), given_loss=False
    )

    def through_time(program: Program, x: Tensor, y: Tensor) -> Tensor:
        hidden, loss = model.init_hidden(len(x)), torch.zeros(())
        for place in range(x.shape[1]):
            out, hidden = model(x[:, place], hidden)
            loss = loss + program.loss(program.before_loss(out), y[:, place])
        program.descend(loss)
        return loss.detach() / x.shape[1]

    program.own_step = through_time
    return program


def d_linear(seed: int) -> Program:
    """A linear model of trend and season; its weights are learned to forecast seven channels."""
    model = classes("cure-lab/LTSF-Linear", "models/DLinear.py").Model(
        SimpleNamespace(seq_len=48, pred_len=12, individual=False, enc_in=4)
    )
    r = rng(55)
    start = 60 * torch.rand(600, 1, 1, generator=r)
    time = start + torch.arange(60)[None, :, None]
    line = torch.sin(time / torch.tensor([2.0, 3.0, 4.0, 5.0])) + 0.1 * torch.randn(600, 60, 4, generator=r)
    return Program(model, adam(model, 5e-3), nn.MSELoss(), draw(line[:, :48], line[:, 48:], 150, 32, seed))


# ── judged ──────────────────────────────────────────────────────────────────────────────────────────


def neural_collaborative(seed: int) -> Program:
    model = classes("guoyang9/NCF", "model.py").NCF(40, 50, 8, 2, 0.0, "NeuMF-end")
    x, y = clicks((40, 50), 4000)
    batches = [((a[:, 0], a[:, 1]), b) for a, b in draw(x, y, 250, 256, seed)]
    return Program(model, adam(model, 1e-2), nn.BCEWithLogitsLoss(), batches)


def u_net_public(seed: int) -> Program:
    """Four, not 64 channels; cross-entropy and Dice, RMSprop, clipped."""
    parts = classes("milesial/Pytorch-UNet", "unet/unet_parts.py")
    model = classes("milesial/Pytorch-UNet", "unet/unet_model.py", **vars(parts)).UNet(1, 1)
    dice = classes("milesial/Pytorch-UNet", "utils/dice_score.py").dice_loss
    wide = 4
    model.inc, model.outc = parts.DoubleConv(1, wide), parts.OutConv(wide, 1)
    for place in range(1, 5):
        setattr(model, f"down{place}", parts.Down(wide * 2 ** (place - 1), wide * 2**place))
        setattr(model, f"up{place}", parts.Up(wide * 2 ** (5 - place), wide * 2 ** (4 - place), False))
    r = rng(56)
    mask = functional.interpolate((torch.randn(400, 1, 4, 4, generator=r) > 0.5).float(), scale_factor=4)
    x = mask + 0.5 * torch.randn(mask.shape, generator=r)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        of_pixels = functional.binary_cross_entropy_with_logits(out.squeeze(1), y)
        return of_pixels + dice(torch.sigmoid(out.squeeze(1)), y, multiclass=False)

    optimiser = torch.optim.RMSprop(model.parameters(), 1e-3, weight_decay=1e-8, momentum=0.9)
    program = Program(model, optimiser, loss, draw(x, mask[:, 0], 110, 8, seed))
    program.after_backward = clip(1.0)
    return program


def encoder_decoder(seed: int) -> Program:
    """A sentence is copied backwards; the model gets source and shifted target."""
    repository = "hyunwoongko/transformer"
    found: dict[str, Any] = {}
    for path in (
        "layers/scale_dot_product_attention", "layers/layer_norm", "layers/multi_head_attention",
        "layers/position_wise_feed_forward", "embedding/positional_encoding", "embedding/token_embeddings",
        "embedding/transformer_embedding", "blocks/encoder_layer", "blocks/decoder_layer", "model/encoder",
        "model/decoder", "model/transformer",
    ):  # fmt: skip
        found |= vars(classes(repository, f"models/{path}.py", **found))
    model = found["Transformer"](
        src_pad_idx=0, trg_pad_idx=0, trg_sos_idx=1, enc_voc_size=8, dec_voc_size=8, d_model=32, n_head=4, max_len=12,
        ffn_hidden=64, n_layers=1, drop_prob=0.1, device=torch.device("cpu"),
    )  # fmt: skip
    for module in model.modules():
        if getattr(module, "weight", None) is not None and module.weight.dim() > 1:
            nn.init.kaiming_uniform_(module.weight)
    x = torch.randint(2, 8, (800, 4), generator=rng(57))
    target = torch.cat([torch.ones(800, 1, dtype=torch.long), x.flip(1)], 1)
    batches = [((a, b[:, :-1]), b[:, 1:]) for a, b in draw(x, target, 200, 32, seed)]
    optimiser = adam(model, 2e-3, weight_decay=5e-4, eps=5e-9)
    program = Program(
        model, optimiser, lambda out, y: functional.cross_entropy(out.reshape(-1, 8), y.reshape(-1)), batches
    )
    program.after_backward = clip(1.0)
    return program


def attentive_lstm(seed: int) -> Program:
    """The model returns scores and an array of NumPy."""
    file = classes(
        "graykode/nlp-tutorial", "4-3.Bi-LSTM(Attention)/Bi-LSTM(Attention).py",
        vocab_size=40, embedding_dim=12, n_hidden=16, num_classes=3,
    )  # fmt: skip
    model = file.BiLSTM_Attention()
    x, y = words(800, 8, 3)
    program = Program(model, adam(model, 5e-3), nn.CrossEntropyLoss(), draw(x, y, 200, 32, seed))
    program.before_loss = lambda out: out[0]
    return program


def masked_flow(seed: int) -> Program:
    """A flow whose likelihood is a method; the loss becomes negative."""
    file = classes("ikostrikov/pytorch-flows", "flows.py")
    nn.MaskedLinear = file.MaskedLinear  # type: ignore[attr-defined]
    model = file.FlowSequential(
        *(part for _ in range(2) for part in (file.MADE(2, 32), file.BatchNormFlow(2), file.Reverse(2)))
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    r = rng(58)
    z = torch.randn(1500, 2, generator=r)
    x = torch.stack([0.3 * z[:, 0], 0.2 * z[:, 0] ** 2 + 0.05 * z[:, 1]], 1)
    program = Program(
        model, adam(model, 2e-3, weight_decay=1e-6), lambda out, y: out.mean(), draw(x, x, 200, 100, seed),
        given_loss=False,
    )  # fmt: skip

    def likely(program: Program, x: Tensor, y: Tensor) -> Tensor:
        loss = -model.log_probs(x).mean()
        return program.descend(loss)

    program.own_step = likely
    return program


def se_resnet(seed: int) -> Program:
    layer = classes("moskomule/senet.pytorch", "senet/se_module.py").SELayer
    file = classes("moskomule/senet.pytorch", "senet/se_resnet.py", SELayer=layer, ResNet=None)
    model = file.CifarSEResNet(file.CifarSEBasicBlock, 1, reduction=4)
    x, y = images(16, 3)
    optimiser = sgd(model, 0.1, momentum=0.9, weight_decay=1e-4)
    return Program(model, optimiser, functional.cross_entropy, draw(x, y, 110, 8, seed))


def resnext(seed: int) -> Program:
    model = classes("prlz77/ResNeXt.pytorch", "models/model.py").CifarResNeXt(2, 11, 10, 8, 1)
    x, y = images(32, 3)
    optimiser = sgd(model, 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Program(model, optimiser, functional.cross_entropy, draw(x, y, 110, 4, seed))


def siamese_triplets(seed: int) -> Program:
    """Three images a sample; the loss compares their embeddings."""
    model = classes("adambielski/siamese-triplet", "networks.py").EmbeddingNet()
    loss = classes("adambielski/siamese-triplet", "losses.py").TripletLoss(1.0)
    x, y = images(28)
    r = rng(59 + seed)
    batches = []
    for _ in range(80):
        one = torch.randint(len(y), (8,), generator=r)
        same = torch.stack([(y == y[place]).nonzero()[:, 0][torch.randint(100, (), generator=r)] for place in one])
        far = torch.stack([(y != y[place]).nonzero()[:, 0][torch.randint(1000, (), generator=r)] for place in one])
        batches.append((torch.cat([x[one], x[same], x[far]]), y[one].repeat(3)))
    return Program(model, adam(model, 1e-3), lambda out, y: loss(*out.chunk(3)), batches)


def ddpm(seed: int) -> Program:
    """The model draws noise and returns its loss, a scalar."""
    file = classes("TeaPearce/Conditional_Diffusion_MNIST", "script.py")
    model = file.DDPM(file.ContextUnet(1, 8), (1e-4, 0.02), 400, torch.device("cpu"))
    x, y = images(28)
    x = (x - x.min()) / (x.max() - x.min())
    batches = [((a, b), b) for a, b in draw(x, y, 110, 4, seed)]
    return Program(model, adam(model, 1e-3), lambda out, y: out, batches)


def actor_critic_example(seed: int) -> Program:
    """The policy of the example on a task of one step: push against the pole's side; the reward is logged."""
    model = classes("pytorch/examples", "reinforcement_learning/actor_critic.py").Policy()
    program = Program(
        model, adam(model, 3e-3), lambda out, y: out[0].mean(), [(torch.randn(24, 4), None) for _ in range(200)],
        given_loss=False,
    )  # fmt: skip

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        share, value = model(x)
        chosen = torch.distributions.Categorical(share)
        action = chosen.sample()
        reward = (action == (x[:, 2] > 0).long()).float()
        ahead = (reward - reward.mean()) / (reward.std() + 1e-6)
        loss = -(chosen.log_prob(action) * (ahead - value[:, 0].detach())).sum()
        loss = loss + functional.smooth_l1_loss(value[:, 0], ahead, reduction="sum")
        program.descend(loss)
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = act
    return program


def mobile_net(seed: int) -> Program:
    model = classes("weiaicunzai/pytorch-cifar100", "models/mobilenet.py").MobileNet(0.125, 10)
    x, y = images(16, 3)
    optimiser = sgd(model, 0.1, momentum=0.9, weight_decay=5e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 150, 16, seed))


def nano_gpt(seed: int) -> Program:
    """The model is given the targets and returns its loss."""
    file = classes("karpathy/nanoGPT", "model.py")
    model = file.GPT(file.GPTConfig(block_size=16, vocab_size=24, n_layer=2, n_head=2, n_embd=32, dropout=0.0))
    x = chain_of_tokens()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    batches = [((a, b), b) for a, b in draw(x[:, :-1], x[:, 1:].contiguous(), 150, 16, seed)]
    program = Program(model, optimiser, own_loss, batches)
    program.after_backward = clip(1.0)
    return program


_PACE = ("rate_times_100", "rate_over_1000")

DEVELOPMENT = {
    "makemore": (makemore, (*_PACE, "forgotten_layers", "weights_times_30")),
    "wide_resnet": (wide_resnet, ("rate_over_1000", "softmax_in_the_loop", "labels_shuffled", "in_eval_mode")),
    "py_gat": (py_gat, ("rate_over_1000", "labels_shuffled", "frozen_layers")),
    "cnn_text": (cnn_text, ("rate_times_100", "rate_over_1000", "labels_shuffled", "softmax_in_the_loop")),
    "point_net_public": (point_net_public, ("rate_over_1000", "frozen_layers", "inputs_times_1000")),
    "deep_fm": (deep_fm, ("rate_over_1000", "decay_of_10", "labels_shuffled")),
    "siren_net": (siren_net, ("rate_times_100", "targets_times_1000", "labels_shuffled")),
    "tutorial_gan": (tutorial_gan, ()),
    "char_rnn": (char_rnn, ("rate_times_100", "rate_over_1000", "softmax_in_the_loop")),
    "d_linear": (d_linear, ("rate_times_100", "rate_over_1000", "targets_times_1000", "never_cleared")),
}
JUDGED = {
    "neural_collaborative": (neural_collaborative, ("rate_over_1000", "labels_shuffled", "sigmoid_in_the_loop")),
    "u_net_public": (u_net_public, (*_PACE, "in_eval_mode", "frozen_layers")),
    "encoder_decoder": (encoder_decoder, (*_PACE, "forgotten_layers", "weights_times_10")),
    "attentive_lstm": (attentive_lstm, (*_PACE, "labels_shuffled", "frozen_layers")),
    "masked_flow": (masked_flow, (*_PACE, "never_cleared")),
    "se_resnet": (se_resnet, ("rate_over_1000", "softmax_in_the_loop", "labels_drawn_anew", "in_eval_mode")),
    "resnext": (resnext, ("rate_over_1000", "forgotten_layers", "labels_shuffled")),
    "siamese_triplets": (siamese_triplets, ("rate_over_1000", "inputs_times_1000")),
    "ddpm": (ddpm, ("rate_times_100", "rate_over_1000")),
    "actor_critic_example": (actor_critic_example, ()),
    "mobile_net": (mobile_net, ("rate_over_1000", "never_cleared", "softmax_in_the_loop", "labels_shuffled")),
    "nano_gpt": (nano_gpt, (*_PACE, "weights_times_30", "frozen_layers")),
}
