"""Decompositions of ATen operators into simpler ATen operators.

The simpler operators have rules that translate them to ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten

LARGEST_TRIANGLE = 64
"""Maximum number of rows of a triangular system that is compiled. Each row adds one or two
kernels."""


def _encoder_layer(
    source: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    projection_weight: torch.Tensor,
    projection_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    epsilon: float,
    first_scale: torch.Tensor,
    first_shift: torch.Tensor,
    second_scale: torch.Tensor,
    second_shift: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decompose PyTorch's fused operator for a `nn.TransformerEncoderLayer` in evaluation mode.

    Args:
        source: the input, of shape (batch, tokens, width).
        mask: the attention mask: boolean, true at keys that are ignored, or numbers that are added
            to the attention scores.
        mask_type: PyTorch's code for the mask's shape: 0 for (queries, keys), 1 for (batch, keys),
            2 for the shape of the scores.
    """
    size = source.shape[-1] // heads

    def attended(x: torch.Tensor) -> torch.Tensor:
        joined = functional.linear(x, qkv_weight, qkv_bias)
        parts = joined.unflatten(-1, (3, heads, size)).permute(2, 0, 3, 1, 4)
        bias = None if mask is None else _additive(mask, mask_type, x.dtype)
        found = functional.scaled_dot_product_attention(*parts.unbind(0), bias)
        return functional.linear(
            found.transpose(1, 2).flatten(2), projection_weight, projection_bias
        )

    def fed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, up_weight, up_bias)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, down_weight, down_bias)

    def normal(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (x.shape[-1],), scale, shift, epsilon)

    if norm_first:
        source = source + attended(normal(source, first_scale, first_shift))
        return source + fed(normal(source, second_scale, second_shift))
    source = normal(source + attended(source), first_scale, first_shift)
    return normal(source + fed(source), second_scale, second_shift)


def _additive(mask: torch.Tensor, mask_type: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the term that is added to attention scores of shape (batch, heads, queries, keys).

    For a boolean mask, it is -inf where the mask is true and 0 elsewhere. A numeric mask is the
    term itself.

    Args:
        mask: the mask, of a shape that `mask_type` states.
        mask_type: PyTorch's code for the mask's shape: 0 for (queries, keys), 1 for (batch, keys),
            2 for the shape of the scores.
        dtype: the type of the scores.
    """
    if mask_type == 1:
        mask = mask[:, None, None]
    if mask.dtype is not torch.bool:
        return mask
    return mask.new_zeros((), dtype=dtype).masked_fill(mask, -torch.inf)


def _histogram(x: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> torch.Tensor:
    """Count the elements in each of `bins` equal intervals between `low` and `high`.

    If `low` equals `high`, the intervals lie between the smallest and the largest element.
    """
    flat = x.reshape(-1)
    least, most = flat.new_full((), low), flat.new_full((), high)
    if low == high:
        least, most = (flat.amin(), flat.amax()) if flat.numel() else (least, most)
        same = least == most
        least, most = torch.where(same, least - 1, least), torch.where(same, most + 1, most)
    inside = (flat >= least) & (flat <= most)
    place = ((flat - least) * bins / (most - least)).clamp(0, bins - 1)
    place = torch.where(inside, place, 0).long()
    return flat.new_zeros(bins).scatter_add(0, place, inside.to(flat.dtype))


def _solved(
    a: torch.Tensor, b: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    """Solve a x = b for a triangular matrix a; solve x a = b if `left` is false.

    The result consists of products, sums and concatenations: the matrix is divided recursively into
    halves. Return NotImplemented if the matrix has a dynamic size or more than 64 rows, because the
    number of these operators grows with the rows.

    Args:
        a: the matrix; only its upper or lower triangle is read, as `upper` says.
        b: the right-hand sides.
        upper: whether a is upper triangular.
        left: whether a is the left factor.
        unitriangular: whether the diagonal of a counts as ones.
    """
    size = a.shape[-1]
    if not isinstance(size, int) or not 0 < size <= LARGEST_TRIANGLE:
        return NotImplemented
    if not left:
        turned = _solved(a.mT, b.mT, upper=not upper, unitriangular=unitriangular)
        return turned if turned is NotImplemented else turned.mT
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    b = b.expand(*batch, *b.shape[-2:])

    def solved(first: int, last: int, given: torch.Tensor) -> torch.Tensor:
        """Solve for rows `first` to `last` (exclusive) of the unknowns.

        Only the diagonal block of the matrix at these rows is used. `given` is the right-hand side
        of the rows.
        """
        if last - first == 1:
            return given if unitriangular else given / a[..., first:last, first:last]
        middle = (first + last) // 2
        rows = middle - first
        if upper:
            below = solved(middle, last, given[..., rows:, :])
            known = a[..., first:middle, middle:last] @ below
            return torch.cat([solved(first, middle, given[..., :rows, :] - known), below], -2)
        above = solved(first, middle, given[..., :rows, :])
        known = a[..., middle:last, first:middle] @ above
        return torch.cat([above, solved(middle, last, given[..., rows:, :] - known)], -2)

    return solved(0, size, b)


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.histc.default: _histogram,
    aten.linalg_solve_triangular.default: _solved,
}
