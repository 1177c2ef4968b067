"""A small network of every kind, samples for it, and what the probes read of it."""

import torch

from conftest import regression
from sonde.core.generators import generator
from sonde.metrics.probes import PROBES, Snapshot
from sonde.metrics.rows import Reading
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet, VitMini
from sonde.models.model import Model
from sonde.network import Network, Signature
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, Loss

D, L = 8, 3
IMAGE = Signature(shape=(1, 8, 8), outputs=4, classifies=True)
NETWORKS: dict[str, tuple[Model, Signature]] = {
    "plain_mlp": (PlainMLP(d=D, L=L), regression(D)),
    "res_mlp": (ResMLP(d=D, L=L), regression(D)),
    "plain_mlp on images": (PlainMLP(d=D, L=L), IMAGE),
    "residual_mlp": (ResidualMLP(d=D, L=L, w2_std=0.3), IMAGE),
    "residual_mlp, no terminal LN": (ResidualMLP(d=D, L=L, w2_std=0.3, out_ln=False), IMAGE),
    "residual_mlp, not residual": (ResidualMLP(d=D, L=L, w2_std=0.3, residual=False), IMAGE),
    "vit_mini": (VitMini(d=D, L=L, heads=2), IMAGE),
    "student_net": (StudentNet(d=D, L=L), IMAGE),
}


def moved(model: Model, signature: Signature) -> tuple[Network, dict[str, torch.Tensor]]:
    """A network that has left its initial weights, and those weights."""
    net = model.build(signature, generator(3, "init"))
    initial = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape, generator=generator(4, "noise")) * 0.05)
    return net, initial


def samples(signature: Signature, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(n, *signature.shape, generator=generator(5, "x")) * 2 - 1
    y = torch.randint(signature.outputs, (n,), generator=generator(6, "y"))
    return x, y if signature.classifies else x


def loss_of(signature: Signature) -> Loss:
    return CROSS_ENTROPY if signature.classifies else MEAN_SQUARED_ERROR


def read(snapshot: Snapshot, *names: str) -> dict[tuple[str, int | None], Reading]:
    """The readings of these probes, or of all, by metric and layer."""
    found = {}
    for name in names or PROBES:
        for reading in PROBES[name](snapshot):
            found[reading.metric, reading.layer] = reading
    return found
