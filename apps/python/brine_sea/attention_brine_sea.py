"""The SEA block in PyTorch: q, k, v to sparse attention whose mask is estimated in linear time.

Sparse linear attention with an estimated attention mask (Lee et al., ICLR 2024) as Brine computes it. Section
numbers refer to docs/method.md of Brine; sizes are those of columns_brine_sea.py, with R rows the last of the S
tokens. No tensor is S x S: rows are processed in tiles, and the memory of attention is that of its entries, R H k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .columns_brine_sea import (
    Rows,
    attend,
    column_begins,
    column_products,
    columns_to_select,
    largest,
    prefix_sums,
    recomputed,
    tiles,
)
from .configuration_brine_sea import CHANNEL_EXPANSION, WIDTH_REDUCTION, SeaSettings, Shape, check_integer

ELEMENTS_OF_ENTRY = 32  # of a mask: what makes a tile's gathered keys and values as large as its other tensors
LOG_FEATURE = (-20.0, 12.0)  # limits of the logarithm of learned features (section 1.6)
MIN_SHARE = 1e-7  # of a column, under a learned prior
LOOKBACK = 6  # rows before a row that the scores of a causal decoder depend on


def of_one_type(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three in the widest of their types: with autocast rotations give q and k in f32 next to a v in 16 bits."""
    wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return q.to(wide), k.to(wide), v.to(wide)


class Store(Protocol):
    """The tensors of a cache, by the number of a slot."""

    def __call__(self, slot: int, new: Tensor, kept: int | None = None) -> Tensor:
        """Adds rows [B, ., R, e] after all rows or after the first `kept`; returns all of them, [B, ., S, e].

        Changes nothing if `new` has no rows.
        """

    def coded(self, *given: Any) -> tuple[Tensor, ...] | None:
        """What QuantizedLayer.copies() gives; None of other caches."""


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
        for a, b in tiles(count, batch * heads * k.shape[3]):
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
    for a in range(0, q.shape[3], chunk):
        b = a + chunk
        chunk_q, chunk_k, chunk_v = q[:, :, :, a:b], k[:, :, :, a:b], values[:, :, :, a:b]
        inner = (chunk_q @ chunk_k.transpose(-1, -2)).tril()
        norm = inner.sum(-1, keepdim=True) + (chunk_q * (sums.to(q.dtype) + eps)).sum(-1, keepdim=True)
        parts.append(divided(inner @ chunk_v + chunk_q @ state, norm))
        state = state + chunk_k.transpose(-1, -2) @ chunk_v
        sums = sums + chunk_k.double().sum(-2, keepdim=True)
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

    def __init__(self, heads: int, weight: Tensor, rotary: bool):
        """weight [m, d]: what A is at first, in every head."""
        super().__init__()
        self.weight = nn.Parameter(weight.repeat(heads, 1, 1))
        self.bias = nn.Parameter(torch.zeros(heads, len(weight)))
        self.content = nn.Parameter(torch.randn(heads, *weight.shape) * 0.01) if rotary else None

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

    def __init__(self, heads: int, columns: int, causal: bool):
        super().__init__()
        self.columns, self.causal = columns, causal
        self.stride = 1 if causal else WIDTH_REDUCTION  # of the first convolution along tokens
        channels = heads * CHANNEL_EXPANSION
        if causal:
            self.norm_in = nn.LayerNorm(columns // WIDTH_REDUCTION)
            self.norm_out = nn.LayerNorm(columns)
            nn.init.constant_(self.norm_out.weight, 0.1)
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3) for _ in range(2))
        self.conv_out = nn.Conv2d(channels, heads, 3, bias=False)

    def normed(self, x: Tensor) -> Tensor:
        """The rows of nu as the convolutions read them."""
        if not self.causal:
            return x
        return layer_norm(self.norm_in, x.unflatten(-1, (-1, self.columns // WIDTH_REDUCTION))).flatten(-2)

    def convolve(self, conv: nn.Conv2d, image: Tensor, stride: int = 1) -> Tensor:
        before, after = (2, 0) if self.causal else (1, 1)
        bias = None if conv.bias is None else conv.bias.to(image.dtype)
        padded = F.pad(image, (1, 1, before, after))
        return F.conv2d(padded, conv.weight.to(image.dtype), bias, stride=(stride, 1))

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Rows from normed(), the first one at a multiple of the stride; valid [B, R]: the others are padding."""
        batch, heads, count, _ = x.shape
        width = self.columns // WIDTH_REDUCTION
        image = x.view(batch, heads, count, CHANNEL_EXPANSION, width).transpose(2, 3).flatten(1, 2)
        live = valid[:, None, :, None]
        image = F.relu(self.convolve(self.conv1, image * live, self.stride))
        image = F.relu(self.convolve(self.conv2, image * live[:, :, :: self.stride]))
        rows = torch.arange(count, device=x.device) // self.stride
        columns = torch.arange(self.columns, device=x.device) // WIDTH_REDUCTION
        scores = self.convolve(self.conv_out, image[:, :, rows][..., columns] * live)
        return layer_norm(self.norm_out, scores) if self.causal else scores


def random_projection(features: int, d: int) -> Tensor:
    """R [m, d]: blocks of orthogonal rows with the norms of Gaussian vectors (section 1.2)."""
    made = torch.float32  # the decomposition has no form in 16 bits
    blocks = [torch.linalg.qr(torch.randn(d, d, dtype=made))[0].T for _ in range(-(-features // d))]
    norms = torch.randn(features, d, dtype=made).norm(dim=-1, keepdim=True)
    return (torch.cat(blocks)[:features] * norms).to(torch.get_default_dtype())


class Held(nn.Module):
    """A tensor under a name of Brine's files."""

    bias: Tensor  # the scores of every row where there is no decoder
    projection: Tensor  # R of the random features, a buffer
    table: Tensor  # V_I of causal models (section 1.1)

    def __init__(self, name: str, x: Tensor, trained: bool = True):
        super().__init__()
        if trained:
            self.register_parameter(name, nn.Parameter(x))
        else:
            self.register_buffer(name, x)


class Mu(nn.Module):
    """GELU(LayerNorm(Linear(.))), of one head or of all heads of a token (section 1.3)."""

    def __init__(self, width: int):
        super().__init__()
        self.linear, self.norm = nn.Linear(3 * width, 2 * width), nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(layer_norm(self.norm, linear(self.linear, x)))


class ColumnPrior(nn.Module):
    """What is added to the scores of columns (section 1.6): gains [H], and the features of a learned prior."""

    def __init__(self, shape: Shape, settings: SeaSettings):
        super().__init__()
        if settings.prior != "none":
            self.gain = nn.Parameter(torch.ones(shape.heads))
        if settings.pooled_prior:
            self.pooled_gain = nn.Parameter(torch.ones(shape.heads))
        if settings.prior != "learned":
            return
        half = random_projection(settings.prior_features, shape.head_size) / 2
        self.query = PriorFeatures(shape.heads, half, shape.rotary)
        self.key = PriorFeatures(shape.groups, half, shape.rotary)


class SeaAttention(nn.Module):
    """The block. Its parameters have the names of Brine's files.

    k may be changed between calls, query_skip between sequences. If `capture` is a dictionary, a
    call puts "scores" (of columns) and "estimate" [B, H, R, K] and "selected" (the same, of bits) into it, packed.
    """

    def __init__(self, shape: Shape, settings: SeaSettings):
        super().__init__()
        settings.validate(shape)
        self.shape, self.settings = shape, settings
        self.k, self.query_skip = settings.k, 1
        self.capture: dict[str, Tensor] | None = None
        heads, d, columns = shape.heads, shape.head_size, settings.columns
        if settings.has_performer:
            self.performer = Held("projection", random_projection(settings.feature_count(d), d), trained=False)
        if settings.mixes:
            if shape.causal:
                self.v_identity = Held("table", torch.randn(shape.max_positions, d))
            self.mu = Mu(d * (heads if settings.mu_scope == "token" else 1))
        if settings.decodes:
            self.nu = nn.Linear(2 * d, CHANNEL_EXPANSION * columns // WIDTH_REDUCTION)
            self.decoder: nn.Module = MapDecoder(heads, columns, shape.causal)
        else:
            self.decoder = Held("bias", torch.zeros(heads, columns))
        if settings.gates == "head":
            self.gates = nn.Parameter(torch.full((heads, 2), settings.gate_bias))
        else:
            self.scaler = nn.Linear(2 * d, 2)
        if settings.prior != "none" or settings.pooled_prior:
            self.prior = ColumnPrior(shape, settings)
        self.reset_parameters()

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
        """phi of x [B, ., T, d] (section 1.2): [B, ., T, m]."""
        projection = self.performer.projection.to(x.dtype)
        y = x @ projection.T * x.shape[-1] ** -0.25
        if self.settings.features == "relu":
            y = y.relu() + self.settings.eps
        else:
            largest_value = y.detach()
            if of_keys and visible is not None:
                largest_value = largest_value.masked_fill(~visible[:, None, :, None], -math.inf)
            largest_value = largest_value.amax((2, 3) if of_keys else (3,), keepdim=True)
            half_square = x.square().sum(-1, keepdim=True) / (2 * math.sqrt(x.shape[-1]))
            y = ((y - half_square - largest_value).exp() + self.settings.eps) * projection.shape[0] ** -0.5
        return y

    def features(self, x: Tensor, content: Tensor | None, visible: Tensor | None, of_keys: bool) -> Tensor:
        """All features of x [B, ., T, d]: phi, then psi of a learned prior, 0 at padding: [B, ., T, m + m']."""
        parts = []
        if self.settings.has_performer:
            parts.append(self.random_features(x, visible, of_keys))
        if self.settings.prior == "learned":
            parts.append((self.prior.key if of_keys else self.prior.query)(x, content))
        y = torch.cat(parts, -1) if parts else x[..., :0]
        return y if visible is None else y.masked_fill(~visible[:, None, :, None], 0)

    def split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """phi and the features of the prior, which are phi or psi."""
        s = self.settings
        m = s.feature_count(self.shape.head_size) if s.has_performer else 0
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
            position = at.double() * (d - 1) / (lengths - 1).clamp(min=1)
            y = (1 - (position - column).abs()).clamp(min=0).to(like.dtype)
        return (y * (at < lengths))[:, None]

    def mixed(self, context: Tensor, v: Tensor) -> Tensor:
        """Z of C_perf and v (section 1.3): [B, H, R, 2d], [B, H, R, d] -> [B, H, R, 2d]."""
        both = torch.cat([context, v], -1)
        if self.settings.mu_scope == "token":
            both = both.transpose(1, 2).flatten(2)
            return self.mu(both).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        return self.mu(both)

    def decoded(self, z: Tensor, rows: Rows, padding: Padding | None, store: Store | None) -> Tensor:
        """Scores of the convolutional decoder, [B, H, R, K]."""
        decoder, skip = self.decoder, self.query_skip
        assert isinstance(decoder, MapDecoder)
        x = decoder.normed(linear(self.nu, z))
        if rows.whole:
            if store is not None:
                store(1, padding.unpacked(x) if padding else x)
            scores = decoder(x[:, :, ::skip], rows.valid[:, ::skip])
            return rows_at(scores, rows.ordinals // skip) if skip > 1 else scores
        assert store is not None
        x = store(1, x)
        x = (padding.packed(x) if padding else x)[:, :, ::skip]
        positions, lengths = rows.ordinals.clamp(min=0) // skip, (rows.lengths + skip - 1) // skip
        start = positions[:, :1] - LOOKBACK
        at = start + torch.arange(LOOKBACK + rows.widths.shape[1], device=x.device)
        window = rows_at(x, at.clamp(0, x.shape[2] - 1))
        scores = decoder(window, (at >= 0) & (at < lengths[:, None]))
        return rows_at(scores, (positions - start).clamp(min=0))

    def repeated(self, scores: Tensor, rows: Rows, padding: Padding | None, store: Store | None) -> Tensor:
        """Each row has the scores of the last row before it whose ordinal query_skip divides (section 5)."""
        fresh = rows.ordinals.clamp(min=0) // self.query_skip * self.query_skip
        if rows.whole:
            if store is not None:
                store(2, padding.unpacked(scores) if padding else scores)
            return rows_at(scores, fresh)
        assert store is not None
        scores = store(2, scores)
        if scores.shape[2] <= int(fresh.max()):
            raise ValueError("brine: query_skip was changed inside a sequence")
        return rows_at(padding.packed(scores) if padding else scores, fresh)

    def scores(self, x: Inputs, decoded: Tensor) -> Tensor:
        """S with the priors (section 1.6)."""
        s, rows = self.settings, x.rows
        y = decoded
        if s.prior != "none":
            products, begins = column_products(x.psi_q, x.psi_k, rows, s.columns, s.prior_units)
            sizes = begins.diff(dim=-1)[:, None]
            total = products.sum(-1, keepdim=True)
            share = products / torch.where(total > 0, total, 1)
            if s.prior == "learned":
                share = share.clamp(min=MIN_SHARE)
            ratio = share * rows.widths[:, None, :, None] / sizes.clamp(min=1)
            y = y + self.prior.gain.to(y.dtype)[:, None, None] * torch.where(sizes > 0, ratio, 1).log()
        if s.pooled_prior:
            products, begins = column_products(x.q, x.k, rows, s.columns, s.prior_units)
            sizes = begins.diff(dim=-1)[:, None]
            pooled = torch.where(sizes > 0, products / sizes.clamp(min=1) * x.q.shape[-1] ** -0.5, 0)
            y = y + self.prior.pooled_gain.to(y.dtype)[:, None, None] * pooled
        return y

    def column_softmax(self, scores: Tensor, widths: Tensor) -> Tensor:
        """Over the columns that have a key, 0 elsewhere (section 1.7)."""
        owned = (column_begins(widths, self.settings.columns).diff(dim=-1) > 0)[:, None]
        y = scores.masked_fill(~owned, -math.inf).softmax(-1)
        return torch.where(owned, y, 0)

    def select(self, order: Tensor, rows: Rows) -> Tensor:
        """Columns of the mask (section 2.2): an estimate [B, H, R, K] -> bits of the same shape."""
        batch, heads, count, columns = order.shape
        k, mode = self.k, self.settings.mode
        if torch.isnan(order).any():
            raise ValueError("brine: the estimate has values that are NaN")
        owned = (column_begins(rows.widths, columns).diff(dim=-1) > 0)[:, None]
        order = order.masked_fill(~owned, -math.inf)
        if mode == "causal-per-batch":
            parts = []
            for a, b in tiles(count, batch * heads * columns):
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
        for a, b in tiles(rows.widths.shape[1], v.shape[0] * v.shape[2]):
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
        check_integer("k", self.k)
        with torch.autocast(q.device.type, enabled=False):
            given = v.dtype
            q, k, v = of_one_type(q, k, v)
            if q.dtype.itemsize < 4:
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
                new_values = x.v if rows.whole else v[:, :, -q.shape[2] :]
                z = self.mixed(context, new_values.repeat_interleave(self.shape.heads // self.shape.groups, 1))
            # The mask has no gradient; in an encoder the average reads the estimate, too.
            with torch.set_grad_enabled(torch.is_grad_enabled() and not rows.causal):
                if isinstance(self.decoder, Held):
                    decoded = self.decoder.bias.to(q.dtype)[None, :, None].expand(len(q), -1, q.shape[2], -1)
                else:
                    assert z is not None
                    decoded = self.decoded(z, rows, padding, store)
                scores = self.scores(x, decoded)
                if self.query_skip > 1:
                    scores = self.repeated(scores, rows, padding, store)
                estimate = self.column_softmax(scores, rows.widths)
            with torch.no_grad():
                selected = self.select(estimate.detach(), rows)
            if self.capture is not None:
                self.capture.update(scores=scores, estimate=estimate, selected=selected)
            y = self.output(x, estimate, selected, z)
            return (padding.unpacked(y) if rows.whole and padding else y).to(given)

    def output(self, x: Inputs, estimate: Tensor, selected: Tensor, z: Tensor | None) -> Tensor:
        """C_sea (section 3), [B, H, R, d]."""
        rows, batch, heads = x.rows, x.q.shape[0], x.q.shape[1]
        entries = batch * heads * self.k  # of a row
        parts = [
            recomputed(attend, x.q[:, :, a:b], x.k, x.v, selected[:, :, a:b], rows.widths[:, a:b], self.k)
            for a, b in tiles(x.q.shape[2], ELEMENTS_OF_ENTRY * entries)
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
        """The tensors of a call, packed: the tokens of a sequence first, those of padding after them."""
        batch, count, keys = q.shape[0], q.shape[2], k.shape[2]
        whole = count == keys
        new = None if padding is None else padding.visible[:, keys - count :]
        q_content, k_content = content or (None, None)
        of_queries = self.features(q, q_content, new, False)
        of_keys = self.features(k[:, :, keys - count :], k_content, new, True)
        if store is not None and of_keys.shape[-1]:
            of_keys = store(0, of_keys)
        ordinals = torch.arange(keys - count, keys, device=q.device).expand(batch, -1)
        lengths = torch.full((batch,), keys, device=q.device)
        if padding is not None:
            lengths = padding.visible.sum(1)
            ordinals = ordinals if whole else padding.ordinals[:, keys - count :]
            k, v, of_keys = padding.packed(k), padding.packed(v), padding.packed(of_keys)
            if whole:
                q, of_queries = padding.packed(q), padding.packed(of_queries)
                new = ordinals < lengths[:, None]
        widths = ordinals + 1 if self.shape.causal else lengths[:, None].expand(-1, count)
        if new is not None:
            widths = widths * new
        rows = Rows(widths, ordinals, lengths, whole, self.shape.causal)
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


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """Rows positions[b] of x [B, ., S, e]."""
    return x.gather(2, positions[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1]))
