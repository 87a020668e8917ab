"""Columns of keys, the sparse mask, attention on it, and the hash of weights, as functions of tensors.

B sequences, H heads of queries, G of keys and values (head h reads group h // (H / G)), d head size, S keys,
R rows (queries), K columns of the estimate, k kept keys of a query and head, m features; a row sees w keys.
Section numbers refer to docs/method.md of Brine.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

TILE = 1 << 22  # elements of the largest tensor of a tile


@dataclass
class Rows:
    """The queries of a call.

    whole: they are all tokens, packed: row t is the token with ordinal t. Otherwise the keys before them come
    from a cache.
    """

    widths: Tensor  # [B, R] keys that a row sees, 0 at padding
    ordinals: Tensor  # [B, R] of the row's token among the sequence's tokens
    lengths: Tensor  # [B]
    whole: bool
    causal: bool

    @property
    def valid(self) -> Tensor:
        return self.widths > 0


# ---- columns of keys (section 2.1, 1.6)


def column_begins(widths: Tensor, columns: int) -> Tensor:
    """First keys b(c) = floor((2 c w + K) / 2K) of columns 0..K: [...] -> [..., K + 1]."""
    c = torch.arange(columns + 1, device=widths.device)
    return (2 * c * widths[..., None] + columns) // (2 * columns)


def units_of_sums(widths: Tensor, columns: int, units: int, keys: int) -> Tensor:
    """Keys of a unit: the largest power of two 2^i with 2^i u K <= w, 1 if u = 0; `keys` bounds the widths."""
    unit = torch.ones_like(widths)
    larger = 2
    while units > 0 and larger * units * columns <= keys:
        unit = torch.where(larger * units * columns <= widths, larger, unit)
        larger *= 2
    return unit


def sum_begins(widths: Tensor, columns: int, units: int, keys: int) -> Tensor:
    """Borders of the columns whose sums the priors take, on whole units; the last one is w. -> [..., K + 1]."""
    unit = units_of_sums(widths, columns, units, keys)
    begins = unit[..., None] * column_begins(widths // unit, columns)
    return torch.cat([begins[..., :-1], widths[..., None]], -1)


def round_half_even(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator of integers, rounded; halves to even."""
    quotient, rest = numerator // denominator, numerator % denominator
    up = (2 * rest > denominator) | ((2 * rest == denominator) & (quotient % 2 == 1))
    return quotient + up


def columns_to_select(members: int | Tensor, k: int, columns: int, widths: Tensor) -> Tensor:
    """Columns that a group of rows and heads selects (section 2.2); 0 where it sees no key."""
    owned = widths.clamp(max=columns)
    wanted = round_half_even(members * k * owned, widths.clamp(min=1))
    return torch.minimum(torch.clamp(wanted, min=members), members * owned) * (widths > 0)


def largest(values: Tensor, take: Tensor) -> Tensor:
    """Mask of the take[n] largest of values [N, n], of equal ones the later (section 2.3)."""
    limit = int(take.max()) if take.numel() else 0
    if limit == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    border = values.topk(limit, -1).values.gather(-1, (take - 1).clamp(min=0)[:, None])
    above, ties = values > border, values == border
    room = take[:, None] - above.sum(-1, keepdim=True)
    from_the_end = ties.flip(-1).cumsum(-1).flip(-1)
    return above | (ties & (from_the_end <= room))


# ---- products of queries with the sums of keys over columns


def spans(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `size`, at least 1."""
    size = max(1, size)
    return ((a, min(a + size, end)) for a in range(start, end, size))


def tiles(rows: int, elements: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most TILE elements, a row having this many; at least one row each."""
    return spans(0, rows, TILE // max(1, elements))


def recomputed(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """function(*inputs), computed again in the backward pass: a tile's memory is that of one tile."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return function(*inputs)


def prefix_sums(x: Tensor) -> Tensor:
    """Sums of the first 0..S rows of x [B, G, S, m], in f64: avoids cancellation in small columns. [B, G, S + 1, m]."""
    return F.pad(x.double().cumsum(2), (0, 0, 1, 0))


def column_products(q: Tensor, k: Tensor, rows: Rows, columns: int, units: int) -> tuple[Tensor, Tensor]:
    """q(t) . sum of k over the keys of each column, and the columns' borders.

    q [B, H, R, m], k [B, G, S, m] -> [B, H, R, K], [B, R, K + 1]
    """
    batch, heads, count, m = q.shape
    groups, keys = k.shape[1], k.shape[2]
    begins = sum_begins(rows.widths, columns, units, keys)
    q = q.reshape(batch, groups, heads // groups, count, m)
    if not rows.causal:
        borders = sum_begins(rows.lengths, columns, units, keys)[:, None, :, None]
        sums = prefix_sums(k).gather(2, borders.expand(-1, groups, -1, m)).diff(dim=2).to(q.dtype)
        products = q @ sums.transpose(-1, -2)[:, :, None]
    else:
        # Few keys: a product with each is cheaper than sums for each row.
        few = keys
        if rows.whole:
            few = min(keys, 2 * units * columns - 1 if units else 8 * columns)
        parts = [
            recomputed(products_by_keys, q[:, :, :, a:b], k[:, :, : b if rows.whole else keys], begins[:, a:b])
            for a, b in tiles(few if rows.whole else count, batch * heads * few)
        ]
        if few < keys and rows.whole:
            parts += products_by_sums(q, k, few + 1, columns, units)
        products = torch.cat(parts, 3)
    return products.reshape(batch, heads, count, columns), begins


def products_by_keys(q: Tensor, k: Tensor, begins: Tensor) -> Tensor:
    """q [B, G, n, R, m], k [B, G, S, m], begins [B, R, K + 1] -> [B, G, n, R, K]."""
    of_keys = (q.flatten(2, 3) @ k.transpose(-1, -2)).view(*q.shape[:4], -1)
    sums = F.pad(of_keys.double().cumsum(-1), (1, 0))
    borders = begins[:, None, None].expand(*q.shape[:4], -1)
    return sums.gather(-1, borders).diff(dim=-1).to(q.dtype)


def products_by_sums(q: Tensor, k: Tensor, first: int, columns: int, units: int) -> list[Tensor]:
    """The same of the rows that see first..S keys, in O(K m) a row; rows of one unit share their sums."""
    prefix, keys, parts = prefix_sums(k), k.shape[2], []
    batch, groups, m = k.shape[0], k.shape[1], k.shape[3]
    while first <= keys:
        unit = int(units_of_sums(torch.tensor(first), columns, units, first))
        last = min(keys, 2 * unit * units * columns - 1) if units else keys
        bands = -(-(last - first + 1) // unit)
        for a, b in tiles(bands, batch * groups * (columns + 1) * m):
            begin, end = first + a * unit, min(last, first + b * unit - 1)
            parts.append(recomputed(products_of_bands, q[:, :, :, begin - 1 : end], prefix, begin, unit, columns))
        first = last + 1
    return parts


def products_of_bands(q: Tensor, prefix: Tensor, begin: int, unit: int, columns: int) -> Tensor:
    """Rows that see begin, begin + 1... keys, q [B, G, n, R, m]; `unit` rows at a time share the same borders."""
    batch, groups, n, count, m = q.shape
    bands = -(-count // unit)
    whole = begin // unit + torch.arange(bands, device=q.device)
    borders = (unit * column_begins(whole, columns)).flatten()
    sums = prefix[:, :, borders].view(batch, groups, bands, columns + 1, m).diff(dim=3).to(q.dtype)
    in_bands = F.pad(q, (0, 0, 0, bands * unit - count)).view(batch, groups, n, bands, unit, m)
    in_bands = in_bands.transpose(2, 3).reshape(batch, groups, bands, n * unit, m)
    products = (in_bands @ sums.transpose(-1, -2)).view(batch, groups, bands, n, unit, columns)
    products = products.transpose(2, 3).reshape(batch, groups, n, bands * unit, columns)[:, :, :, :count]
    if unit == 1:
        return products
    # The last column has the keys that are less than a unit, too.
    seen = begin + torch.arange(count, device=q.device)
    rest = (prefix[:, :, seen] - prefix[:, :, seen // unit * unit]).to(q.dtype)
    return torch.cat([products[..., :-1], products[..., -1:] + (q * rest[:, :, None]).sum(-1, keepdim=True)], -1)


# ---- the mask and attention on it


def entries_of(selected: Tensor, widths: Tensor, limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """The keys of the selected columns [B, H, R, K]; a column gives at most `limit` (section 2.4).

    Of every entry, sorted, its row (b H + h) R + r and its key, and the numbers of the rows' entries [B H R].
    """
    batch, heads, count, columns = selected.shape
    begins = column_begins(widths, columns)
    b, h, r, c = selected.nonzero(as_tuple=True)
    end = begins[b, r, c + 1]
    size = end - begins[b, r, c]
    kept = size.clamp(max=limit)
    of_column = (b * heads + h) * count + r
    before = kept.cumsum(0) - kept
    back = (before + kept - 1).repeat_interleave(kept) - torch.arange(int(kept.sum()), device=kept.device)
    skipped = back * size.repeat_interleave(kept) // kept.repeat_interleave(kept)
    row = of_column.repeat_interleave(kept)
    counts = torch.bincount(row, minlength=batch * heads * count)
    return row, end.repeat_interleave(kept) - 1 - skipped, counts


def attend(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, widths: Tensor, kept: int) -> Tensor:
    """P V on the mask (section 3). q [B, H, R, d], k, v [B, G, S, d], selected [B, H, R, K] -> [B, H, R, d]."""
    batch, heads, count, d = q.shape
    groups, keys = k.shape[1], k.shape[2]
    row, key, counts = entries_of(selected, widths, kept)
    # Of the entries' keys among those of all sequences and groups.
    at = row // (heads // groups * count) * keys + key
    scores = (q.reshape(-1, d)[row] * k.reshape(-1, d)[at]).sum(-1) * d**-0.5
    maxima = scores.new_full((len(counts),), -math.inf)
    maxima = maxima.scatter_reduce(0, row, scores.detach(), "amax")
    shares = (scores - maxima[row]).exp()
    total = shares.new_zeros(len(counts)).index_add(0, row, shares)
    starts = counts.cumsum(0) - counts
    sums = F.embedding_bag(at, v.reshape(-1, d), starts, mode="sum", per_sample_weights=shares / total[row])
    return sums.view(batch, heads, count, d)


# ---- weights


def hash_of(tensors: dict[str, Tensor]) -> str:
    """Brine's SHA-256 of a model: names, types, shapes and values in f32, in the order of the names."""
    digest = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        digest.update(f"{name} f32 [{', '.join(map(str, x.shape))}]\n".encode())
        digest.update(x.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()
