"""The same steps written in JAX: jit of a whole epoch, `lax.scan` over its steps, `vmap` over seeds.

Weights come from the networks that PyTorch built, so that both train the same thing.  R networks, S steps, N samples.
"""

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sonde.core.validated import Optimiser
from sonde.models import Model, PlainMLP, ResidualMLP, ResMLP
from sonde.network import Network
from sonde.training.kernels import ADAM_BETAS, ADAM_EPSILON

NO_JAX = "JAX is not installed; pip install 'sonde[bench]'"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
LAYER_NORM_EPSILON = 1e-5

Arrays = Mapping[str, Any]
Outputs = Callable[[Arrays, Any], Any]


def has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


class JaxEpoch:
    """An epoch of some networks at every call; returns the loss of every step, R×S.

    What each network learns from are x and y of its own.  A step takes what is chosen of their first axis: rows of
    all samples, R×S×N, or one of S batches that lie ready, R×S.
    """

    def __init__(
        self,
        model: Model,
        nets: Sequence[Network],
        optimiser: Optimiser,
        x: np.ndarray,
        y: np.ndarray,
        *,
        classifies: bool,
    ) -> None:
        os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
        import jax

        each = [_weights(net) for net in nets]
        weights = {name: jax.numpy.stack([w[name] for w in each]) for name in each[0]}
        first, second = (jax.tree.map(jax.numpy.zeros_like, weights) for _ in range(2))
        self.state = weights, first, second, jax.numpy.zeros(len(nets))
        self.x, self.y = jax.numpy.asarray(x), jax.numpy.asarray(y)
        take_step = _step(_outputs(model), optimiser, classifies=classifies)

        def epoch(state: Any, x: Any, y: Any, chosen: Any) -> Any:
            return jax.lax.scan(lambda state, now: take_step(state, x[now], y[now]), state, chosen)

        self._epoch = jax.jit(jax.vmap(epoch), donate_argnums=0)
        self.seconds_to_compile: float | None = None

    def __call__(self, chosen: np.ndarray) -> np.ndarray:
        if self.seconds_to_compile is None:
            begin = time.perf_counter()
            self._epoch = self._epoch.lower(self.state, self.x, self.y, chosen).compile()
            self.seconds_to_compile = time.perf_counter() - begin
        self.state, losses_RS = self._epoch(self.state, self.x, self.y, chosen)
        return np.asarray(losses_RS)


def _weights(net: Network) -> dict[str, np.ndarray]:
    """By the names of PyTorch's parameters; matrices as they stand in x W."""
    return {name: np.array(p.detach().numpy().T) for name, p in net.named_parameters()}


def _outputs(model: Model) -> Outputs:
    import jax
    import jax.numpy as jnp

    def linear(weights: Arrays, name: str, x: Any) -> Any:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"] if f"{name}.weight" in weights else x

    def norm(weights: Arrays, name: str, x: Any) -> Any:
        if f"{name}.weight" not in weights:
            return x
        centred = x - x.mean(-1, keepdims=True)
        unit = centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + LAYER_NORM_EPSILON)
        return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def relu_block(weights: Arrays, block: str, h: Any) -> Any:
        return jax.nn.relu(linear(weights, f"{block}.linear", h))

    def pre_norm_block(weights: Arrays, block: str, h: Any) -> Any:
        inner = linear(weights, f"{block}.w1", norm(weights, f"{block}.ln", h))
        return linear(weights, f"{block}.w2", jax.nn.gelu(inner, approximate=False))

    if not isinstance(model, PlainMLP | ResMLP | ResidualMLP):
        raise TypeError(f"{type(model).__name__} is not written in JAX")
    block = pre_norm_block if isinstance(model, ResidualMLP) else relu_block

    def outputs(weights: Arrays, x: Any) -> Any:
        h = linear(weights, "embed.linear", x.reshape(len(x), -1))
        for layer in range(model.L):
            f = block(weights, f"blocks.{layer}", h)
            h = h + f if model.residual else f
        return linear(weights, "readout.out_head", norm(weights, "readout.out_ln", h))

    return outputs


def _step(outputs: Outputs, optimiser: Optimiser, *, classifies: bool) -> Callable[[Any, Any, Any], Any]:
    """Mean squared error or cross entropy, by Adam or AdamW; with the loss before the step."""
    import jax
    import jax.numpy as jnp

    decay = 1 - optimiser.lr * optimiser.weight_decay if optimiser.name == "adamw" else 1.0

    def loss(weights: Arrays, x: Any, y: Any) -> Any:
        z = outputs(weights, x)
        if not classifies:
            return ((z - y) ** 2).mean()
        return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        weights, first, second, steps = state
        value, gradients = jax.value_and_grad(loss)(weights, x, y)
        steps = steps + 1
        rate = optimiser.lr / (1 - ADAM_BETAS[0] ** steps)
        root = jnp.sqrt(1 - ADAM_BETAS[1] ** steps)
        first = jax.tree.map(lambda m, g: ADAM_BETAS[0] * m + (1 - ADAM_BETAS[0]) * g, first, gradients)
        second = jax.tree.map(lambda v, g: ADAM_BETAS[1] * v + (1 - ADAM_BETAS[1]) * g * g, second, gradients)
        weights = jax.tree.map(
            lambda w, m, v: decay * w - rate * m / (jnp.sqrt(v) / root + ADAM_EPSILON), weights, first, second
        )
        return (weights, first, second, steps), value

    return step
