"""Multi-head attention written out, so that its projections are seen one by one.

``torch.nn.functional.multi_head_attention_forward`` projects inside one opaque call. This is the same computation with
the same arguments, through ``linear`` and ``scaled_dot_product_attention``; tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adadp.gradients.readers import Part, Reader, WrittenOut


def attention(  # noqa: PLR0917 - the signature is multi_head_attention_forward's
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,  # noqa: ARG001 - then in_proj_weight is None
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,  # noqa: ARG001 - see _attention
    static_v: Tensor | None = None,  # noqa: ARG001
    average_attn_weights: bool = True,
    is_causal: bool = False,  # noqa: ARG001 - a hint about attn_mask, which must be given with it
    *,
    part: Part,
) -> tuple[Tensor, Tensor | None]:
    """As ``multi_head_attention_forward``, for inputs ``[positions, records, width]``.

    ``part(parameter, start, stop)`` gives rows of a packed projection.
    """
    length, records, width = query.shape
    heads, head_width = num_heads, embed_dim_to_check // num_heads
    if in_proj_weight is not None and query is key and key is value:
        q, k, v = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, dim=-1)
    else:
        rows = [(width * i, width * (i + 1)) for i in range(3)]
        separate = (q_proj_weight, k_proj_weight, v_proj_weight)
        weights = [part(in_proj_weight, *each) for each in rows] if in_proj_weight is not None else separate
        biases = [None if in_proj_bias is None else part(in_proj_bias, *each) for each in rows]
        q, k, v = (
            F.linear(x, weight, bias)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
            if weight is not None
        )
    mask = _merged_mask(query, key, key_padding_mask, attn_mask)
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(records, 1, -1).transpose(0, 1)])
        v = torch.cat([v, bias_v.expand(records, 1, -1).transpose(0, 1)])
        mask = _widened(mask)
    q, k, v = (x.reshape(x.shape[0], records, heads, head_width).permute(1, 2, 0, 3) for x in (q, k, v))
    if add_zero_attn:
        zero = k.new_zeros(records, heads, 1, head_width)
        k, v = torch.cat([k, zero], dim=2), torch.cat([v, zero], dim=2)
        mask = _widened(mask)
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(records, -1, *mask.shape[1:])
    dropout = dropout_p if training else 0.0
    if need_weights:
        scores = (q @ k.mT) / math.sqrt(head_width)
        weights_ = F.softmax(scores if mask is None else scores + mask, dim=-1)
        weights_ = F.dropout(weights_, dropout) if dropout > 0 else weights_
        mixed = weights_ @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    output = F.linear(mixed.permute(2, 0, 1, 3).reshape(length, records, width), out_proj_weight, out_proj_bias)
    if not need_weights:
        return output, None
    return output, weights_.mean(dim=1) if average_attn_weights else weights_


def _merged_mask(
    query: Tensor, key: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> Tensor | None:
    """Both masks as one additive mask that broadcasts over ``[records, heads, length, keys]``, or None."""
    mask = None if attn_mask is None else _additive(attn_mask, query)
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, query).view(key.shape[1], 1, 1, key.shape[0])
        if mask is None:
            return padding
        mask = mask.reshape(key.shape[1], -1, *mask.shape[1:]) if mask.dim() == 3 else mask
        return mask + padding
    return mask


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(mask, -math.inf)


def _widened(mask: Tensor | None) -> Tensor | None:
    """One more key that everybody may look at."""
    return None if mask is None else F.pad(mask, (0, 1))


def _attention(query: Tensor, *args: Any, **kwargs: Any) -> WrittenOut | None:
    """Written out, unless there is no batch dimension or keys and values are static."""
    if query.dim() != 3 or kwargs.get("static_k") is not None or kwargs.get("static_v") is not None:
        return None
    return WrittenOut(partial(attention, query, *args, **kwargs))


def _masked(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
) -> WrittenOut | None:
    """A trained mask (relative positions) is added to the scores of every record: here it is first given to each."""
    if attn_mask is None or query.dim() != 4:
        return None
    mask = attn_mask
    return WrittenOut(
        lambda part: F.scaled_dot_product_attention(  # noqa: ARG005
            query, key, value, mask.expand(query.shape[0], -1, *mask.shape[-2:]), *args, **kwargs
        )
    )


READERS: dict[Callable[..., Any], Reader] = {
    F.multi_head_attention_forward: _attention,
    F.scaled_dot_product_attention: _masked,
}
