"""A loop that is watched: a step of a thousand modules for every line it is sent.  `watched_by_lines.py STORE NAME`"""

import sys

import torch
from torch import Tensor, nn

import sonde

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), *(Block() for _ in range(200)), nn.Linear(8, 2))
optimiser = torch.optim.Adam(model.parameters(), 1e-3)
watch = sonde.watch(model, optimiser, runs=sys.argv[1], name=sys.argv[2], every=1)
for _ in sys.stdin:
    optimiser.zero_grad()
    model(torch.randn(5, 4)).square().mean().backward()
    optimiser.step()
    print(watch.step, flush=True)
