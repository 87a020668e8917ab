"""The SEA block in PyTorch: q, k, v to sparse attention whose mask is estimated in linear time.

Sparse linear attention with an estimated attention mask (Lee et al., ICLR 2024) as Brine computes it. Section
numbers refer to docs/method.md of Brine. B sequences, H heads of queries, G of keys and values (head h reads
group h // (H / G)), d head size, S keys, R rows (queries, the last R of the S tokens), K columns of the
estimate, k kept keys of a query and head, m features. Row t sees w(t) keys. No tensor is S x S: rows are
processed in tiles, and the memory of attention is that of its entries, R H k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .configuration_brine_sea import DecoderShape, SeaSettings, Shape

TILE = 1 << 22  # elements of the largest tensor of a tile
ENTRIES = 1 << 17  # of the mask in a tile
LOG_FEATURE = (-20.0, 12.0)  # limits of the logarithm of learned features (section 1.6)
LEAST_SHARE = 1e-7  # of a column, under a learned prior

# Adds [B, ., R, e] of the new tokens to what a cache has under a number; returns all of it, [B, ., S, e].
Store = Callable[[int, Tensor], Tensor]


@dataclass
class Rows:
    """The queries of a call.

    whole: they are all tokens, packed: row t is the token with ordinal t. Otherwise the keys before them come
    from a cache.
    """

    widths: Tensor  # [B, R] keys that a row sees, 0 at padding
    ordinals: Tensor  # [B, R] of the row's own token among the sequence's tokens
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
    most = int(take.max()) if take.numel() else 0
    if most == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    border = values.topk(most, -1).values.gather(-1, (take - 1).clamp(min=0)[:, None])
    above, ties = values > border, values == border
    room = take[:, None] - above.sum(-1, keepdim=True)
    from_the_end = ties.flip(-1).cumsum(-1).flip(-1)
    return above | (ties & (from_the_end <= room))


# ---- products of queries with the sums of keys over columns


def tiles(rows: int, size: int) -> Iterator[tuple[int, int]]:
    size = max(1, size)
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def recomputed(function: Callable[..., Tensor], *inputs: object) -> Tensor:
    """function(*inputs), computed again in the backward pass: a tile's memory is that of one tile."""
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return function(*inputs)


def prefix_sums(x: Tensor) -> Tensor:
    """Sums of the first 0..S rows of x [B, G, S, m], in f64: a small column keeps its digits. [B, G, S + 1, m]."""
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
        near = keys
        if rows.whole:
            near = min(keys, 2 * units * columns - 1 if units else 8 * columns)
        size = TILE // max(1, batch * heads * near)
        parts = [
            recomputed(products_by_keys, q[:, :, :, a:b], k[:, :, : b if rows.whole else keys], begins[:, a:b])
            for a, b in tiles(near if rows.whole else count, size)
        ]
        if near < keys and rows.whole:
            parts += products_by_sums(q, k, near + 1, columns, units)
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
        for a, b in tiles(bands, TILE // (batch * groups * (columns + 1) * m)):
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


@dataclass
class Entries:
    """Entries of a sparse mask, sorted by row (b H + h) R + r, then by key."""

    row: Tensor
    key: Tensor
    counts: Tensor  # [B H R]


def entries_of(selected: Tensor, widths: Tensor, most: int) -> Entries:
    """The keys of the selected columns [B, H, R, K]; a column gives at most `most` (section 2.4)."""
    batch, heads, count, columns = selected.shape
    begins = column_begins(widths, columns)
    b, h, r, c = selected.nonzero(as_tuple=True)
    end = begins[b, r, c + 1]
    size = end - begins[b, r, c]
    kept = size.clamp(max=most)
    of_column = (b * heads + h) * count + r
    before = kept.cumsum(0) - kept
    back = (before + kept - 1).repeat_interleave(kept) - torch.arange(int(kept.sum()), device=kept.device)
    skipped = back * size.repeat_interleave(kept) // kept.repeat_interleave(kept)
    row = of_column.repeat_interleave(kept)
    counts = torch.bincount(row, minlength=batch * heads * count)
    return Entries(row, end.repeat_interleave(kept) - 1 - skipped, counts)


def refined(entries: Entries, scores: Tensor, k: int) -> Tensor:
    """Which entries stay: the k with the largest scores of every row (section 2.6)."""
    starts = entries.counts.cumsum(0) - entries.counts
    place = torch.arange(len(scores), device=scores.device) - starts[entries.row]
    table = scores.new_full((len(entries.counts), max(1, int(entries.counts.max()))), -math.inf)
    table[entries.row, place] = scores
    return largest(table, entries.counts.clamp(max=k))[entries.row, place]


def attend(q: Tensor, k: Tensor, v: Tensor, selected: Tensor, widths: Tensor, kept: int, oversample: int) -> Tensor:
    """P V on the mask (section 3). q [B, H, R, d], k, v [B, G, S, d], selected [B, H, R, K] -> [B, H, R, d]."""
    batch, heads, count, d = q.shape
    groups, keys = k.shape[1], k.shape[2]
    entries = entries_of(selected, widths, kept * oversample)

    def places() -> Tensor:  # of the entries' keys among those of all sequences and groups
        return entries.row // (heads // groups * count) * keys + entries.key

    def scores_of(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return (x.reshape(-1, d)[entries.row] * y.reshape(-1, d)[at]).sum(-1)

    at = places()
    if oversample > 1 and len(at):
        with torch.no_grad():
            stays = refined(entries, scores_of(q, at, k), kept)
        row = entries.row[stays]
        entries = Entries(row, entries.key[stays], torch.bincount(row, minlength=len(entries.counts)))
        at = places()
    scores = scores_of(q, at, k) * d**-0.5
    most = scores.new_full((len(entries.counts),), -math.inf)
    most = most.scatter_reduce(0, entries.row, scores.detach(), "amax")
    shares = (scores - most[entries.row]).exp()
    total = shares.new_zeros(len(entries.counts)).index_add(0, entries.row, shares)
    starts = entries.counts.cumsum(0) - entries.counts
    sums = F.embedding_bag(
        at, v.reshape(-1, d), starts, mode="sum", per_sample_weights=shares / total[entries.row]
    )
    return sums.view(batch, heads, count, d)


# ---- linear attention (section 1.2)


def linear_attention(q: Tensor, k: Tensor, values: Tensor, rows: Rows, eps: float) -> Tensor:
    """q [B, H, R, m], k [B, G, S, m], values [B, G, S, e] -> [B, H, R, e]; eps is added to sums of k."""
    batch, heads, count, m = q.shape
    groups = k.shape[1]
    q = q.reshape(batch, groups, heads // groups, count, m)
    k, values = k[:, :, None], values[:, :, None]
    if rows.whole and rows.causal:
        y = causal_linear_attention(q, k, values, eps)
    elif rows.whole:
        sums = k.double().sum(-2, keepdim=True).to(q.dtype) + eps
        y = divided(q @ (k.transpose(-1, -2) @ values), (q * sums).sum(-1, keepdim=True))
    else:
        parts = []
        for a, b in tiles(count, TILE // max(1, batch * heads * k.shape[3])):
            seen = torch.arange(k.shape[3], device=q.device) < rows.widths[:, None, None, a:b, None]
            part = (q[:, :, :, a:b] @ k.transpose(-1, -2)) * seen
            norm = part.sum(-1, keepdim=True) + eps * q[:, :, :, a:b].sum(-1, keepdim=True)
            parts.append(divided(part @ values, norm))
        y = torch.cat(parts, 3)
    return y.reshape(batch, heads, count, -1)


def causal_linear_attention(q: Tensor, k: Tensor, values: Tensor, eps: float, chunk: int = 128) -> Tensor:
    """Products inside a chunk of tokens, running sums between chunks."""
    state = values.new_zeros(*k.shape[:3], k.shape[-1], values.shape[-1])
    sums = k.new_zeros(*k.shape[:3], 1, k.shape[-1], dtype=torch.float64)
    parts = []
    for a, b in tiles(q.shape[3], chunk):
        own_q, own_k, own_v = q[:, :, :, a:b], k[:, :, :, a:b], values[:, :, :, a:b]
        inner = (own_q @ own_k.transpose(-1, -2)).tril()
        norm = inner.sum(-1, keepdim=True) + (own_q * (sums.to(q.dtype) + eps)).sum(-1, keepdim=True)
        parts.append(divided(inner @ own_v + own_q @ state, norm))
        state = state + own_k.transpose(-1, -2) @ own_v
        sums = sums + own_k.double().sum(-2, keepdim=True)
    return torch.cat(parts, 3)


def divided(x: Tensor, by: Tensor) -> Tensor:
    """x / by, 0 at padding, where both are."""
    return x / torch.where(by > 0, by, 1)


# ---- modules


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    """In the type of x: the block computes in f32 also where the weights are in 16 bits."""
    return F.linear(x, module.weight.to(x.dtype), None if module.bias is None else module.bias.to(x.dtype))


def layer_norm(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, module.normalized_shape, module.weight.to(x.dtype), module.bias.to(x.dtype), module.eps)


class PriorFeatures(nn.Module):
    """exp(clip(d^-1/4 A x + U x' + b)) of each head of x; x' is x before its rotation (section 1.6)."""

    def __init__(self, heads: int, features: int, d: int, rotary: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(heads, features, d))
        self.bias = nn.Parameter(torch.zeros(heads, features))
        self.content = nn.Parameter(torch.empty(heads, features, d).normal_(std=0.01)) if rotary else None

    def forward(self, x: Tensor, content: Tensor | None) -> Tensor:
        """x, content [B, heads, T, d] -> [B, heads, T, m]."""
        weight = self.weight.to(x.dtype) * x.shape[-1] ** -0.25
        y = x @ weight.transpose(-1, -2) + self.bias.to(x.dtype)[:, None]
        if self.content is not None:
            if content is None:
                raise ValueError("brine: the learned prior needs q and k before their rotation")
            y = y + content @ self.content.to(x.dtype).transpose(-1, -2)
        return y.clamp(*LOG_FEATURE).exp()


class MapDecoder(nn.Module):
    """The output of nu [B, H, R, c_h W] to scores [B, H, R, K] (section 1.5)."""

    def __init__(self, heads: int, columns: int, shape: DecoderShape, causal: bool):
        super().__init__()
        self.shape, self.columns, self.causal = shape, columns, causal
        channels = heads * shape.channel_expansion
        if shape.norm:
            self.norm_in = nn.LayerNorm(columns // shape.width_reduction)
            self.norm_out = nn.LayerNorm(columns)
            nn.init.constant_(self.norm_out.weight, 0.1)
        for i in range(1, shape.depth + 1):
            self.add_module(f"conv{i}", nn.Conv2d(channels, channels, 3))
        self.conv_out = nn.Conv2d(channels, heads, shape.last_kernel, bias=False)

    @property
    def lookback(self) -> int:
        """Rows before a row that its scores depend on, at most."""
        s = self.shape
        return 2 * s.dilation * (1 + (s.depth - 1) * s.token_stride) + 2 + 2 * s.token_stride

    def normed(self, x: Tensor) -> Tensor:
        """The rows of nu as the convolutions read them."""
        if not self.shape.norm:
            return x
        width = self.columns // self.shape.width_reduction
        return layer_norm(self.norm_in, x.unflatten(-1, (-1, width))).flatten(-2)

    def convolve(self, conv: nn.Module, image: Tensor, dilation: int, stride: int) -> Tensor:
        assert isinstance(conv, nn.Conv2d)
        span = (conv.kernel_size[0] - 1) * dilation
        before, after = (span, 0) if self.causal else (span // 2, span // 2)
        bias = None if conv.bias is None else conv.bias.to(image.dtype)
        padded = F.pad(image, (span // 2, span // 2, before, after))
        return F.conv2d(padded, conv.weight.to(image.dtype), bias, stride=(stride, 1), dilation=dilation)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Rows from normed(), the first one at a multiple of the stride; valid [B, R]: the others are padding."""
        s = self.shape
        batch, heads, count, _ = x.shape
        width = self.columns // s.width_reduction
        image = x.view(batch, heads, count, s.channel_expansion, width).transpose(2, 3).flatten(1, 2)
        live = valid[:, None, :, None]
        for i in range(1, s.depth + 1):
            conv = self.get_submodule(f"conv{i}")
            image = F.relu(self.convolve(conv, image * live, s.dilation, s.token_stride if i == 1 else 1))
            if i == 1:
                live = live[:, :, :: s.token_stride]
        rows = torch.arange(count, device=x.device) // s.token_stride
        columns = torch.arange(self.columns, device=x.device) * width // self.columns
        if s.last_kernel == 1:
            scores = self.convolve(self.conv_out, image, 1, 1)[:, :, rows][..., columns]
        else:
            wide = image[:, :, rows][..., columns] * valid[:, None, :, None]
            scores = self.convolve(self.conv_out, wide, 1, 1)
        return layer_norm(self.norm_out, scores) if s.norm else scores


class ScoreTable(nn.Module):
    """The scores of every row where there is no decoder."""

    def __init__(self, heads: int, columns: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(heads, columns))


def random_projection(features: int, d: int) -> Tensor:
    """R [m, d]: blocks of orthogonal rows with the norms of Gaussian vectors (section 1.2)."""
    blocks = [torch.linalg.qr(torch.randn(d, d))[0].T for _ in range(-(-features // d))]
    return torch.cat(blocks)[:features] * torch.randn(features, d).norm(dim=-1, keepdim=True)


class SeaAttention(nn.Module):
    """The block. Its parameters have the names of Brine's files.

    k and oversample may be changed between calls. If `capture` is a dictionary, a call puts "scores" (of
    columns), "estimate" and "order" [B, H, R, K] and "selected" (the same, of bits) into it, packed.
    """

    def __init__(self, shape: Shape, settings: SeaSettings):
        super().__init__()
        settings.validate(shape)
        self.shape, self.settings = shape, settings
        self.k, self.oversample = settings.k, settings.oversample
        self.capture: dict[str, Tensor] | None = None
        heads, d, columns = shape.heads, shape.head_size, settings.columns
        if settings.performs:
            self.performer = nn.Module()
            self.performer.register_buffer("projection", random_projection(settings.feature_count(d), d))
        if settings.mixes:
            if shape.causal:
                self.v_identity = nn.Module()
                positions = settings.max_positions or shape.max_positions
                self.v_identity.table = nn.Parameter(torch.randn(positions, d))
            wide = d * (heads if settings.mu_scope == "token" else 1)
            self.mu = nn.Module()
            self.mu.linear, self.mu.norm = nn.Linear(3 * wide, 2 * wide), nn.LayerNorm(2 * wide)
        if settings.decodes:
            decoder = settings.decoder_shape(shape.causal)
            self.nu = nn.Linear(2 * d, decoder.channel_expansion * columns // decoder.width_reduction)
            self.decoder: nn.Module = MapDecoder(heads, columns, decoder, shape.causal)
        else:
            self.decoder = ScoreTable(heads, columns)
        if settings.gates == "head":
            self.gates = nn.Parameter(torch.full((heads, 2), settings.gate_bias))
        else:
            self.scaler = nn.Linear(2 * d, 2)
        self.make_prior()
        self.reset_parameters()

    def make_prior(self) -> None:
        s, heads = self.settings, self.shape.heads
        if s.prior == "none" and not s.pooled_prior:
            return
        self.prior = nn.Module()
        if s.prior != "none":
            self.prior.gain = nn.Parameter(torch.ones(heads))
        if s.pooled_prior:
            self.prior.pooled_gain = nn.Parameter(torch.ones(heads))
        if s.prior != "learned":
            return
        d, rotary = self.shape.head_size, self.shape.rotary
        half = random_projection(s.prior_features, d) / 2
        self.prior.query = PriorFeatures(heads, s.prior_features, d, rotary)
        self.prior.key = PriorFeatures(self.shape.groups, s.prior_features, d, rotary)
        with torch.no_grad():
            self.prior.query.weight.copy_(half.expand_as(self.prior.query.weight))
            self.prior.key.weight.copy_(half.expand_as(self.prior.key.weight))

    def reset_parameters(self) -> None:
        """Values of an untrained block (docs/method.md section 4 of the linear maps)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if self.settings.gates == "token":
            nn.init.constant_(self.scaler.bias, self.settings.gate_bias)

    # ---- stages

    def random_features(self, x: Tensor, visible: Tensor | None, of_keys: bool) -> Tensor:
        """phi of x [B, ., T, d] (section 1.2), 0 at padding: [B, ., T, m]."""
        projection = self.performer.projection.to(x.dtype)
        y = x @ projection.T * x.shape[-1] ** -0.25
        if self.settings.features == "relu":
            y = y.relu() + self.settings.eps
        else:
            most = y.detach()
            if of_keys:
                if visible is not None:
                    most = most.masked_fill(~visible[:, None, :, None], -math.inf)
                most = most.amax((2, 3), keepdim=True)
            else:
                most = most.amax(-1, keepdim=True)
            half_square = x.square().sum(-1, keepdim=True) / (2 * math.sqrt(x.shape[-1]))
            y = ((y - half_square - most).exp() + self.settings.eps) * projection.shape[0] ** -0.5
        return y if visible is None else y.masked_fill(~visible[:, None, :, None], 0)

    def features(self, x: Tensor, content: Tensor | None, visible: Tensor | None, of_keys: bool) -> Tensor:
        """All features of x [B, ., T, d]: phi, then psi of a learned prior. [B, ., T, m + m']."""
        parts = []
        if self.settings.performs:
            parts.append(self.random_features(x, visible, of_keys))
        if self.settings.prior == "learned":
            psi = (self.prior.key if of_keys else self.prior.query)(x, content)
            parts.append(psi if visible is None else psi.masked_fill(~visible[:, None, :, None], 0))
        return torch.cat(parts, -1) if parts else x[..., :0]

    def split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """phi and the features of the prior, which are phi or psi."""
        s = self.settings
        m = s.feature_count(self.shape.head_size) if s.performs else 0
        phi = features[..., :m]
        return phi, phi if s.prior == "performer" else features[..., m:]

    def identity(self, rows: Rows, keys: int, like: Tensor) -> Tensor:
        """V_I (section 1.1), [B or 1, 1, S, d]."""
        d = self.shape.head_size
        if self.shape.causal:
            table = self.v_identity.table
            if keys > len(table):
                raise ValueError(f"brine: {keys} tokens, but v_identity.table has {len(table)} positions")
            return table[:keys].to(like.dtype)[None, None]
        at = torch.arange(keys, device=like.device)[None, :, None]
        column = torch.arange(d, device=like.device)
        lengths = rows.lengths[:, None, None]
        if self.settings.identity_interpolation == "nearest":
            y = (at * d // lengths.clamp(min=1) == column).to(like.dtype)
        else:
            place = at.double() * (d - 1) / (lengths - 1).clamp(min=1)
            y = (1 - (place - column).abs()).clamp(min=0).to(like.dtype)
        return (y * (at < lengths))[:, None]

    def mixed(self, context: Tensor, v: Tensor) -> Tensor:
        """Z of C_perf and v (section 1.3): [B, H, R, 2d], [B, H, R, d] -> [B, H, R, 2d]."""
        both = torch.cat([context, v], -1)
        if self.settings.mu_scope == "token":
            both = both.transpose(1, 2).flatten(2)
            z = F.gelu(layer_norm(self.mu.norm, linear(self.mu.linear, both)))
            return z.unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        return F.gelu(layer_norm(self.mu.norm, linear(self.mu.linear, both)))

    def decoded(self, z: Tensor, rows: Rows, padding: Padding | None, store: Store | None) -> Tensor:
        """Scores of the convolutional decoder, [B, H, R, K]."""
        decoder = self.decoder
        assert isinstance(decoder, MapDecoder)
        x = decoder.normed(linear(self.nu, z))
        if rows.whole:
            if store is not None:
                store(1, padding.unpacked(x) if padding else x)
            return decoder(x, rows.valid)
        assert store is not None
        x = store(1, x)
        x = padding.packed(x) if padding else x
        stride, count = decoder.shape.token_stride, rows.widths.shape[1]
        start = (rows.ordinals[:, :1].clamp(min=0) - decoder.lookback) // stride * stride
        at = start + torch.arange(decoder.lookback + count + stride, device=x.device)
        window = rows_at(x, at.clamp(0, x.shape[2] - 1))
        scores = decoder(window, (at >= 0) & (at < rows.lengths[:, None]))
        return rows_at(scores, (rows.ordinals - start).clamp(min=0))

    def scores(self, x: Inputs, decoded: Tensor) -> tuple[Tensor, Tensor | None]:
        """S with the priors (section 1.6), and the scores of mean keys if they are computed."""
        s, rows = self.settings, x.rows
        y = decoded
        if s.prior != "none":
            products, begins = column_products(x.psi_q, x.psi_k, rows, s.columns, s.prior_units)
            sizes = begins.diff(dim=-1)[:, None]
            total = products.sum(-1, keepdim=True)
            share = products / torch.where(total > 0, total, 1)
            if s.prior == "learned":
                share = share.clamp(min=LEAST_SHARE)
            ratio = share * rows.widths[:, None, :, None] / sizes.clamp(min=1)
            y = y + self.prior.gain.to(y.dtype)[:, None, None] * torch.where(sizes > 0, ratio, 1).log()
        pooled = None
        if s.pooled_prior or s.pooled > 0:
            products, begins = column_products(x.q, x.k, rows, s.columns, s.prior_units)
            sizes = begins.diff(dim=-1)[:, None]
            pooled = torch.where(sizes > 0, products / sizes.clamp(min=1) * x.q.shape[-1] ** -0.5, 0)
            if s.pooled_prior:
                y = y + self.prior.pooled_gain.to(y.dtype)[:, None, None] * pooled
        return y, pooled

    def column_softmax(self, scores: Tensor, widths: Tensor) -> Tensor:
        """Over the columns that own a key, 0 elsewhere (section 1.7)."""
        owned = (column_begins(widths, self.settings.columns).diff(dim=-1) > 0)[:, None]
        y = scores.masked_fill(~owned, -math.inf).softmax(-1)
        return torch.where(owned, y, 0)

    def select(self, order: Tensor, rows: Rows) -> Tensor:
        """Columns of the mask (section 2.2): order [B, H, R, K] -> bits of the same shape."""
        batch, heads, count, columns = order.shape
        k, mode = self.k * self.oversample, self.settings.mode
        if torch.isnan(order).any():
            raise ValueError("brine: the estimate has values that are NaN")
        owned = (column_begins(rows.widths, columns).diff(dim=-1) > 0)[:, None]
        order = order.masked_fill(~owned, -math.inf)
        if mode == "causal-per-batch":
            parts = []
            for a, b in tiles(count, TILE // (batch * heads * columns)):
                take = columns_to_select(heads, k, columns, rows.widths[:, a:b]).flatten()
                flat = order[:, :, a:b].transpose(1, 2).reshape(-1, heads * columns)
                parts.append(largest(flat, take).view(batch, b - a, heads, columns).transpose(1, 2))
            chosen = torch.cat(parts, 2)
        elif mode == "per-query":
            take = columns_to_select(1, k, columns, rows.widths)[:, None].expand(-1, heads, -1)
            chosen = largest(order.reshape(-1, columns), take.flatten()).view_as(order)
        else:
            members = rows.lengths * (heads if mode == "per-batch" else 1)
            take = columns_to_select(members, k, columns, rows.lengths)
            flat = order.reshape(batch, -1)
            if mode == "per-head":
                flat, take = order.reshape(batch * heads, -1), take.repeat_interleave(heads)
            chosen = largest(flat, take).view_as(order)
        # Rows that see at most k keys keep them all.
        few = (rows.widths <= k)[:, None, :, None]
        return (chosen | few) & owned

    def average(self, estimate: Tensor, v: Tensor, rows: Rows) -> Tensor:
        """C_avg (section 3), [B, H or 1, R, d] for each group: v [B, G, S, d] -> [B, H, R, d]."""
        n = self.shape.heads // self.shape.groups
        if not rows.causal:
            share = estimate.double().sum(2)  # [B, H, K]
            begins = column_begins(rows.lengths, self.settings.columns)
            norm = (share * begins.diff(dim=-1)[:, None]).sum(-1, keepdim=True)
            borders = begins[:, None, :, None].expand(-1, v.shape[1], -1, v.shape[-1])
            sums = prefix_sums(v).gather(2, borders).diff(dim=2).repeat_interleave(n, 1)
            mean = (share[:, :, None] @ sums).squeeze(2) / torch.where(norm > 0, norm, 1)
            return mean.to(v.dtype)[:, :, None].expand(-1, -1, rows.widths.shape[1], -1)
        if rows.whole:
            seen = torch.arange(1, v.shape[2] + 1, device=v.device)[:, None]
            return (v.double().cumsum(2) / seen).to(v.dtype).repeat_interleave(n, 1)
        parts = []
        for a, b in tiles(rows.widths.shape[1], TILE // max(1, v.shape[0] * v.shape[2])):
            widths = rows.widths[:, a:b, None]
            seen = (torch.arange(v.shape[2], device=v.device) < widths).to(v.dtype) / widths.clamp(min=1)
            parts.append(seen.to(v.dtype)[:, None] @ v)
        return torch.cat(parts, 2).repeat_interleave(n, 1)

    # ---- the whole

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor | None = None,
        content: tuple[Tensor, Tensor] | None = None,
        store: Store | None = None,
    ) -> Tensor:
        """q [B, H, R, d], k, v [B, G, S, d], both after their rotation -> [B, H, R, d], 0 at padding.

        visible, bits [B, S]: which tokens are not padding, anywhere; None: all. content: q and k of the R new
        tokens before their rotation. store: the cache, if there is one.
        """
        with torch.autocast(q.device.type, enabled=False):
            return self.attention(q, k, v, visible, content, store)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor | None,
        content: tuple[Tensor, Tensor] | None,
        store: Store | None,
    ) -> Tensor:
        given = q.dtype
        if given.itemsize < 4:
            q, k, v = q.float(), k.float(), v.float()
            content = content and (content[0].float(), content[1].float())
        padding = None if visible is None else Padding.of(visible)
        x = self.inputs(q, k, v, padding, content, store)
        rows = x.rows
        z = None
        if self.settings.mixes:
            values = torch.cat([self.identity(rows, k.shape[2], v).expand_as(x.v), x.v], -1)
            eps = 0.0 if self.settings.features == "softmax" else 1e-6
            context = linear_attention(x.phi_q, x.phi_k, values, rows, eps)
            own = x.v if rows.whole else v[:, :, -q.shape[2] :]
            z = self.mixed(context, own.repeat_interleave(self.shape.heads // self.shape.groups, 1))
        # The mask has no gradient; in an encoder the average reads the estimate, too.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not rows.causal):
            if isinstance(self.decoder, ScoreTable):
                decoded = self.decoder.bias.to(q.dtype)[None, :, None].expand(len(q), -1, q.shape[2], -1)
            else:
                assert z is not None
                decoded = self.decoded(z, rows, padding, store)
            scores, pooled = self.scores(x, decoded)
            estimate = self.column_softmax(scores, rows.widths)
        with torch.no_grad():
            share = self.settings.pooled
            rank = estimate.detach()
            if share > 0 and pooled is not None:
                rank = (1 - share) * rank + share * self.column_softmax(pooled, rows.widths)
            selected = self.select(rank, rows)
        if self.capture is not None:
            self.capture.update(scores=scores, estimate=estimate, order=rank, selected=selected)
        y = self.output(x, estimate, selected, z)
        return (padding.unpacked(y) if rows.whole and padding else y).to(given)

    def output(self, x: Inputs, estimate: Tensor, selected: Tensor, z: Tensor | None) -> Tensor:
        """C_sea (section 3), [B, H, R, d]."""
        rows, batch, heads = x.rows, x.q.shape[0], x.q.shape[1]
        size = ENTRIES // max(1, batch * heads * self.k * self.oversample)
        parts = [
            recomputed(
                attend,
                x.q[:, :, a:b],
                x.k,
                x.v,
                selected[:, :, a:b],
                rows.widths[:, a:b],
                self.k,
                self.oversample,
            )
            for a, b in tiles(x.q.shape[2], size)
        ]
        attended = torch.cat(parts, 2)
        if self.settings.gates == "head":
            gates = self.gates.to(attended.dtype)[None, :, None]
        else:
            assert z is not None
            gates = linear(self.scaler, z)
        prob, mix = gates.sigmoid().split(1, dim=-1)
        y = mix * prob * attended + (1 - mix) * self.average(estimate, x.v, rows)
        return y * rows.valid[:, None, :, None]

    def inputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        padding: Padding | None,
        content: tuple[Tensor, Tensor] | None,
        store: Store | None,
    ) -> Inputs:
        """The tensors of a call, packed: the tokens of a sequence in front, those of padding behind them."""
        batch, count, keys = q.shape[0], q.shape[2], k.shape[2]
        whole = count == keys
        new = None if padding is None else padding.visible[:, keys - count :]
        q_content, k_content = content or (None, None)
        of_queries = self.features(q, q_content, new, False)
        of_keys = self.features(k[:, :, keys - count :], k_content, new, True)
        if store is not None and of_keys.shape[-1]:
            of_keys = store(0, of_keys)
        own = torch.arange(keys - count, keys, device=q.device).expand(batch, -1)
        lengths = torch.full((batch,), keys, device=q.device)
        if padding is not None:
            lengths = padding.visible.sum(1)
            own = own if whole else padding.ordinals[:, keys - count :]
            k, v, of_keys = padding.packed(k), padding.packed(v), padding.packed(of_keys)
            if whole:
                q, of_queries = padding.packed(q), padding.packed(of_queries)
                new = own < lengths[:, None]
        widths = own + 1 if self.shape.causal else lengths[:, None].expand(-1, count)
        if new is not None:
            widths = widths * new
        rows = Rows(widths, own, lengths, whole, self.shape.causal)
        phi_q, psi_q = self.split(of_queries)
        phi_k, psi_k = self.split(of_keys)
        return Inputs(q, k, v, phi_q, phi_k, psi_q, psi_k, rows)


@dataclass
class Inputs:
    """The tensors of a call: q [B, H, R, d], k, v [B, G, S, d], features of the Performer and of the prior."""

    q: Tensor
    k: Tensor
    v: Tensor
    phi_q: Tensor
    phi_k: Tensor
    psi_q: Tensor
    psi_k: Tensor
    rows: Rows


@dataclass
class Padding:
    """Where the tokens of sequences with padding are, anywhere."""

    visible: Tensor  # [B, S] bits
    order: Tensor  # [B, S] tokens in front, in their order
    ordinals: Tensor  # [B, S] of a token among those of its sequence

    @staticmethod
    def of(visible: Tensor) -> Padding:
        order = torch.argsort(visible.long(), dim=1, descending=True, stable=True)
        return Padding(visible, order, visible.long().cumsum(1) - 1)

    def packed(self, x: Tensor) -> Tensor:
        return rows_at(x, self.order)

    def unpacked(self, x: Tensor) -> Tensor:
        """The inverse, 0 at padding."""
        return rows_at(x, self.ordinals.clamp(min=0)) * self.visible[:, None, :, None]


def rows_at(x: Tensor, places: Tensor) -> Tensor:
    """Rows places[b] of x [B, ., S, e]."""
    return x.gather(2, places[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))
