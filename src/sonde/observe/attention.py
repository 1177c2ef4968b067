"""Attention as it is computed: entropy of its weights and its largest logit, of a few samples.

`scaled_dot_product_attention` is a function, which no hook of a module sees.  While a pass is watched, a wrapper
replaces it, which calls it unchanged and then passes its arguments to the listeners.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.observe import taps

_SAMPLES = 8
_AT_ONCE = 1 << 22  # logits of a temporary

Listener = Callable[[Tensor, Tensor, Tensor | None, bool, float | None], None]

_listeners: list[Listener] = []
_original: Any = functional.scaled_dot_product_attention


def add_listener(listener: Listener) -> None:
    """Call the listener at every call of `scaled_dot_product_attention`, until `remove_listener`."""
    global _original
    if listener in _listeners:
        return
    if not _listeners:
        _original = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = _attention_with_listeners
    _listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling the listener; the last one puts the original function back."""
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners:
            functional.scaled_dot_product_attention = _original


@functools.wraps(_original)
def _attention_with_listeners(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **more: Any,
) -> Tensor:
    out: Tensor = _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
    if not torch.compiler.is_compiling():
        _tell(query, key, attn_mask, is_causal, scale)
    elif torch.is_grad_enabled() and taps.available and not taps.rounds_elsewhere(query):
        torch.ops.sonde.attention(query, key, attn_mask, is_causal, scale)
    return out


def _tell(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> None:
    for listener in list(_listeners):
        listener(query, key, mask, is_causal, scale)


taps.operator("attention", _tell)  # in a graph


def read_attention(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Mean entropy of the attention weights, and largest logit, of each of the first samples; and of each head.

    q, k of shape (N, heads, length, width) or without heads; entropies are averaged over heads and over queries
    that are not masked everywhere.
    """
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        query, key = query[:_SAMPLES].detach(), key[:_SAMPLES].detach()
        if query.dtype not in (torch.float32, torch.float64):
            query, key = query.float(), key.float()
        if query.dim() == 4 and key.shape[1] != query.shape[1]:  # grouped queries
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        found = [
            _entropy(logits)
            for logits in _logits(query * factor, key, None if mask is None else mask.detach(), is_causal)
        ]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def _logits(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Iterator[Tensor]:
    """Logits of a few samples at a time; −∞ where a key is masked."""
    rows, columns = query.shape[-2], key.shape[-2]
    every = max(1, math.prod(query.shape[1:-1]) * columns)
    many = max(1, _AT_ONCE // every)
    causal = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril() if is_causal else None
    shape = (*query.shape[:-1], columns)
    if mask is not None and mask.dim() == len(shape) and mask.shape[0] > 1:
        mask = mask[:_SAMPLES]
    for start in range(0, query.shape[0], many):
        logits = query[start : start + many] @ key[start : start + many].transpose(-1, -2)
        part = mask
        if mask is not None and mask.dim() == len(shape) and mask.shape[0] > 1:
            part = mask[start : start + many]
        for allowed in (part, causal):
            if allowed is not None:
                blocks = allowed.dtype == torch.bool
                logits = logits.masked_fill(~allowed, -math.inf) if blocks else logits + allowed
        yield logits


def _entropy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each sample, and of each sample and head."""
    weights = logits.softmax(-1)
    entropy = torch.special.entr(weights).sum(-1)
    heads = logits.shape[1] if logits.dim() > 3 else 1
    by_head, top_by_head = (x.reshape(x.shape[0], heads, -1) for x in (entropy, logits))
    return entropy.flatten(1).nanmean(1), logits.flatten(1).amax(1), by_head.nanmean(2), top_by_head.amax(2)


def read_module(
    module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...] | None:
    """The same of a call of `nn.MultiheadAttention`; None where its keys have a bias or zeros of their own."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key = given["query"], given["key"]
    if type(query) is not Tensor or query.is_nested:
        return None
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        if query.dim() == 2:
            query, key = query.unsqueeze(0), key.unsqueeze(0)
        elif not module.batch_first:
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        batch = query.shape[0]
        query, key = query[:_SAMPLES].detach(), key[:_SAMPLES].detach()
        width = module.embed_dim
        if module._qkv_same_embed_dim:
            of_query, of_key = module.in_proj_weight.detach()[: 2 * width].chunk(2)
        else:
            of_query, of_key = module.q_proj_weight.detach(), module.k_proj_weight.detach()
        bias = module.in_proj_bias
        bias_query, bias_key = (None, None) if bias is None else bias.detach()[: 2 * width].chunk(2)
        if module.bias_k is not None or module.add_zero_attn:
            return None
        heads = module.num_heads
        q, k = (
            functional.linear(x.to(weight.dtype), weight, b).reshape(*x.shape[:2], heads, -1).transpose(1, 2)
            for x, weight, b in ((query, of_query, bias_query), (key, of_key, bias_key))
        )
        mask = _mask(given, batch, heads)
        return read_attention(q, k, mask, False, None)


def _mask(given: dict[str, Any], batch: int, heads: int) -> Tensor | None:
    """Both masks of `nn.MultiheadAttention` as one that is added: −∞ where a key is masked."""
    found: Tensor | None = None
    attention, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if attention is not None:
        found = _added(attention)
        if found.dim() == 3:
            found = found.view(batch, heads, *found.shape[1:])[:_SAMPLES]
    if padding is not None:
        blocked = _added(padding[None] if padding.dim() == 1 else padding)[:_SAMPLES, None, None]
        found = blocked if found is None else found + blocked
    return found


def _added(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.detach().float()
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -math.inf)
