"""Softmax and attention: which share of the weight falls on the same place."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sonde.analysis.moments import Moments, Products, participation
from sonde.observe.predict.elementwise import MASKED, add_constant, scalar_value
from sonde.observe.predict.positions import Rows
from sonde.observe.predict.signal import Signal, make, undefined_signal, unknown_result


def softmax(x: Signal, dim: int | None = None, **kwargs: Any) -> Signal:
    """A softmax of Gaussian scores: how much of the weight two rows put on the same place, and on others."""
    named: int | None = kwargs.get("axis", dim)
    axis = (-1 if named is None else named) % x.dim()
    size, row_axis = x.shape[axis], max(axis - 1, 0)
    if (why := _not_known(x, axis)) is not None:
        return undefined_signal(x.tape, tuple(x.shape), why, [x.node])
    rows = _rows(x, axis)
    counts, common = rows.counts, rows.overlap()

    def shares(inputs: list[Moments]) -> tuple[Products, float]:
        """Σ_j E[A_j A'_j] of two rows, by the axes along which they differ; and what the rows pass back on average."""
        products = inputs[0].products
        cross = products.take(0, axis) - products.take(1, axis)
        own, passed = _participation(float(cross.flat[0]), counts)
        top = math.expm1(min(float(cross.flat[0]), 30.0))
        likeness = np.expm1(np.clip(cross, -30, 30)) / top if top > 1e-12 else np.zeros_like(cross)
        uniform = np.full(cross.shape, float((1 / counts).mean()))
        if axis:
            index: list[Any] = [slice(None)] * cross.ndim
            index[row_axis] = 1
            uniform[tuple(index)] = common
        found = uniform + float((own - 1 / counts).mean()) * likeness * uniform / uniform.flat[0]
        return found, float((passed * rows.gradient).mean())

    def forward(inputs: list[Moments]) -> Moments:
        share, _ = shares(inputs)
        other = (1 - share) / (size * max(size - 1, 1))
        return Moments(1 / size, np.stack([share / size, other], axis))

    def backward(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
        share, passed = shares(inputs)
        kept = (gradient.take(0, axis) - gradient.take(1, axis)) * share / share.flat[0] * passed / size
        return [np.stack([kept, -kept / max(size - 1, 1)], axis)]

    made = make([x], x.shape, forward, backward)
    if made.node.undefined is None:
        products = x.node.moments.products
        rows.shares = _participation(float(products.take(0, axis).flat[0] - products.take(1, axis).flat[0]), counts)[0]
    scores = x.node.source
    while len(scores.parents) == 1:  # a mask or a scale
        scores = scores.parents[0].source
    made.node.rows, made.node.scores = rows, scores
    return made


def _not_known(x: Signal, axis: int) -> str | None:
    """Why the weights of a softmax are not known, if masks differ or scores have a fixed bias."""
    allowed, node = x.node.allowed, x.node
    if allowed is not None and axis == x.dim() - 1:
        masks = allowed.broadcast_to([*allowed.shape[:-1], x.shape[axis]]).reshape(-1, *allowed.shape[-2:])
        if bool((masks != masks[0]).any()):
            return "attention with masks that differ between samples or windows has no moments here"
    while len(node.parents) == 1 and not (node.is_biased or node.fan):  # masks, scales and shapes of scores
        node = node.parents[0]
    return "a fixed bias of attention scores, as of ALiBi, has no moments here" if node.is_biased else None


def _participation(variance: float, counts: Products) -> tuple[Products, Products]:
    """`participation`, once for each number of places."""
    known, index = np.unique(counts, return_inverse=True)
    share, passed = participation(variance, known)
    return share[index], passed[index]


def _rows(x: Signal, axis: int) -> Rows:
    """The places that a mask leaves to each row; all of them without a mask."""
    size, allowed = x.shape[axis], x.node.allowed
    count = x.shape[-2] if x.dim() > 1 and axis == x.dim() - 1 else 1
    kept = torch.ones(count, size, dtype=torch.double)
    if allowed is not None and axis == x.dim() - 1:
        kept = allowed.broadcast_to([*allowed.shape[:-1], size]).reshape(-1, *allowed.shape[-2:-1], size)[0].double()
        kept = kept if kept.dim() > 1 else kept[None]
    return Rows(kept.numpy(), np.ones(1))


def attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention, by its definition."""
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        repeat = q.shape[-3] // k.shape[-3]
        k, v = (x.repeat_interleave(repeat, -3) for x in (k, v))
    scores = torch.matmul(q, k.transpose(-2, -1)) * (scale or 1 / math.sqrt(q.shape[-1]))
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -math.inf)
        scores = scores + attn_mask
    return torch.matmul(functional.dropout(torch.softmax(scores, -1), dropout_p), v)


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Any, Any]:
    """`nn.MultiheadAttention` by its definition, on inputs of (tokens, samples, features)."""
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    heads: list[Any] = []
    for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
        y = functional.linear(x, weight, bias)
        y = (
            y.reshape(y.shape[0], y.shape[1], num_heads, -1)
            if y.dim() == 3
            else y.reshape(y.shape[0], 1, num_heads, -1)
        )
        heads.append(y.permute(1, 2, 0, 3))
    mask = attn_mask
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    q, k, v = heads
    out = attention(q, k, v, mask, dropout_p if training else 0.0, is_causal and mask is None)
    out = out.permute(2, 0, 1, 3).reshape(*query.shape[:-1], -1)
    return functional.linear(out, out_proj_weight, out_proj_bias), None


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Scores with masked places; any other fill is unknown."""
    if not isinstance(x, Signal) or isinstance(mask, Signal) or float(value) > MASKED:
        return unknown_result(torch.masked_fill, "masked_fill by a value that is no mask", (x, mask, value), {})
    return add_constant(x, torch.zeros(mask.shape).masked_fill(mask.bool(), -math.inf), tuple(x.shape))


def where(condition: Any, x: Any, y: Any) -> Any:
    """A mask of scores; any other choice is unknown."""
    low = scalar_value(y)
    if isinstance(x, Signal) and not isinstance(condition, Signal) and low is not None and low < MASKED:
        return masked_fill(x, ~condition.bool(), low)
    return unknown_result(torch.where, "where", (condition, x, y), {})
