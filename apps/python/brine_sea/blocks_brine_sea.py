"""Attention over blocks of keys at fixed places, the mask `blocks` (section 8), in PyTorch.

B sequences, H heads of queries, G of keys and values (head h reads group h // (H / G)), d head size, S keys,
R rows (queries), m features. Block b is the keys [b block, (b + 1) block); a tile is `tile` rows, which are in one
block, the current block. Section numbers refer to docs/method.md of Brine. No tensor has S x S elements: blocks are
scored for a band of tiles at a time, and attention gathers the blocks of a few tiles at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention_brine_sea import LEAST_SHARE, ColumnPrior, Padding, Store, rows_at
from .columns_brine_sea import recomputed
from .configuration_brine_sea import BACKENDS, SeaSettings, Shape

# Elements of the largest tensors of a band of tiles that is scored, and of keys and values that are gathered: what
# is fast in a CPU's caches, and on other devices what bounds the memory.
SCORED, GATHERED = 1 << 21, 1 << 21
SCORED_ELSEWHERE, GATHERED_ELSEWHERE = 1 << 25, 1 << 25


@dataclass(frozen=True)
class BlockForm:
    """The settings of a mask of blocks; `chosen` blocks of a row."""

    block: int
    chosen: int
    sinks: int
    local: int
    tile: int
    columns: int
    survivors: int
    opinion: float
    parts: int = 1

    @staticmethod
    def of(settings: SeaSettings, k: int) -> BlockForm:
        s = settings
        n = -(-k // s.block)
        return BlockForm(s.block, n, s.sinks, s.local, s.tile, s.columns, s.survivors, s.opinion, s.parts)

    def levels(self, current: Tensor) -> Tensor:
        """The smallest z with at most `columns` super-blocks of 2^z blocks before the block `current` (section 8.6)."""
        level = torch.zeros_like(current)
        while bool((above := (current >> level) > self.columns).any()):
            level = level + above
        return level

    def fixed(self, current: Tensor) -> Tensor:
        """The blocks before the blocks `current` [n, 1] that rows keep without an estimate (section 8.1): [n, .].

        -1 for none; a block may be there twice.
        """
        sinks = torch.arange(self.sinks, device=current.device).expand(len(current), -1)
        local = current - 1 - torch.arange(self.local, device=current.device)
        return torch.cat([sinks.masked_fill(sinks >= current, -1), local.clamp(min=-1)], 1)

    def is_fixed(self, blocks: Tensor, current: Tensor) -> Tensor:
        return (blocks < self.sinks) | (blocks >= current - self.local)


# ---- selection


def largest_places(values: Tensor, limit: int) -> Tensor:
    """Places of the `limit` largest of values [..., n] that are not negative, of equal ones the later.

    [..., min(limit, n)]; -1 where there are fewer.
    """
    count = values.shape[-1]
    if limit >= count:
        found, places = values, torch.arange(count, device=values.device).expand_as(values)
    else:
        # The one after the last shows a tie, of which topk() may choose any.
        top = values.topk(limit + 1, -1)
        found, places = top.values[..., :limit], top.indices[..., :limit]
        last = found[..., -1]
        tied = (last >= 0) & (last == top.values[..., -1])
        if bool(tied.any()):
            places = places.clone()
            order = values[tied].flip(-1).sort(dim=-1, descending=True, stable=True).indices
            places[tied] = count - 1 - order[:, :limit]
    if bool(torch.isnan(found).any()):
        raise ValueError("brine: the estimate has values that are NaN")
    return places.masked_fill(found < 0, -1)


def distinct(codes: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """The smallest code of each value of code // divisor in rows of codes [n, w], ascending, without negative codes.

    [n, largest number of distinct values], -1 after the last, and their number [n].
    """
    missing = torch.iinfo(codes.dtype).max
    codes = codes.masked_fill(codes < 0, missing).sort(-1).values
    values = codes // divisor
    first = codes < missing
    first[:, 1:] &= values[:, 1:] != values[:, :-1]
    places = first.cumsum(-1) - 1
    counts = places[:, -1] + 1
    width = int(counts.max())
    out = codes.new_full((len(codes), width + 1), -1)
    out.scatter_(1, torch.where(first, places, width), codes)
    return out[:, :width], counts


NO_KEYS_LOG = -1e4  # in place of the logarithm of 0


def clusters(x: Tensor, logs: Tensor | None, parts: int) -> tuple[Tensor, Tensor]:
    """The parts of blocks (section 8.2): means [..., P, d] and logarithms of their numbers of keys [..., P].

    x [..., n, d]; a row is one key, or as many as its logarithm in logs [..., n] says. The first row is the centre
    of the first cluster, that of each next one the row farthest from all centres; a row belongs to the nearest.
    """
    keys = x.new_ones(x.shape[:-1]) if logs is None else logs.exp().round()
    nearest = torch.where(keys > 0, torch.inf, -1.0).to(x.dtype)
    owner = torch.zeros_like(nearest, dtype=torch.long)
    centre = x[..., :1, :]
    for part in range(parts):
        distance = (x - centre).square().sum(-1)
        closer = distance < nearest
        nearest = torch.where(closer, distance, nearest)
        owner = torch.where(closer, part, owner)
        farthest = nearest.argmax(-1)[..., None, None].expand(*x.shape[:-2], 1, x.shape[-1])
        centre = x.gather(-2, farthest)
    of_parts = F.one_hot(owner, parts).to(x.dtype) * keys[..., None]
    counts = of_parts.sum(-2)
    means = of_parts.transpose(-1, -2) @ x / counts.clamp(min=1)[..., None]
    return means, torch.where(counts > 0, counts.log(), NO_KEYS_LOG)


@dataclass
class Blocks:
    """Of N blocks: mean keys by part [B, G, N, P, d], logarithms of the numbers of keys [B, G, N, P], and sums of
    psi_k [B, G, N, m] (m = 0 without a learned prior)."""

    keys: Tensor
    logs: Tensor
    psi: Tensor

    def larger(self, level: int) -> Blocks:
        """The complete super-blocks of 2^level blocks."""
        keys, logs, psi = self.keys, self.logs, self.psi
        for _ in range(level):
            count = keys.shape[2] // 2
            keys, logs, psi = (x[:, :, : 2 * count].unflatten(2, (count, 2)) for x in (keys, logs, psi))
            keys, logs = clusters(keys.flatten(3, 4), logs.flatten(3, 4), self.keys.shape[3])
            psi = psi.sum(3)
        return Blocks(keys, logs, psi)


@dataclass
class Queries:
    """Rows by tiles of n = H / G heads: q [B, G, n, tiles, r, d], and for a learned prior psi and total [..., r]."""

    q: Tensor
    psi: Tensor  # [B, G, n, tiles, r, m]
    total: Tensor  # [B, G, n, tiles, r] of psi with the sum of psi_k over all keys that the row sees
    current: Tensor  # [B, tiles] the block that the rows are in
    gain: Tensor  # [G, n] of the prior
    pooled_gain: Tensor  # [G, n] of the mean keys

    def band(self, a: int, b: int) -> Queries:
        q, psi, total = (x[:, :, :, a:b] for x in (self.q, self.psi, self.total))
        return Queries(q, psi, total, self.current[:, a:b], self.gain, self.pooled_gain)

    def at(self, tiles: Tensor) -> Queries:
        """Single tiles [n, 3], of sequence, group and tile: q [n, H / G, r, d], current [n], gains [n, H / G]."""
        b, g, i = tiles.unbind(1)
        q, psi, total = (x[b, g, :, i] for x in (self.q, self.psi, self.total))
        return Queries(q, psi, total, self.current[b, i], self.gain[g], self.pooled_gain[g])


def shares(x: Queries, blocks: Blocks, hide: Callable[[Tensor], None], opinion: float) -> Tensor:
    """The probabilities of blocks, summed over the heads of a group (section 8.2, 8.3).

    Of x the tensors [..., n, rows, d], [..., n, rows, m], [..., n, rows], gains [..., n]; blocks [..., N, P, d],
    [..., N, P], [..., N, m]. hide() overwrites scores [..., n, rows, N, P] of hidden blocks. -> [..., rows, N]
    """
    keys, logs, psi = blocks.keys, blocks.logs, blocks.psi
    lead, n, rows, d = x.q.shape[:-3], *x.q.shape[-3:]
    parts = keys.shape[-2]
    means = (keys.flatten(-3, -2) * d**-0.5).transpose(-1, -2)
    log_keys = logs.flatten(-2)[..., None, None, :]

    def products(y: Tensor, z: Tensor) -> Tensor:
        return (y.reshape(*lead, n * rows, -1) @ z).view(*lead, n, rows, -1)

    def softened(y: Tensor) -> Tensor:
        y = y.unflatten(-1, (-1, parts))
        hide(y)
        return y.flatten(-2).softmax(-1).unflatten(-1, (-1, parts)).sum(-1) if parts > 1 else y[..., 0].softmax(-1)

    scores = products(x.q * x.pooled_gain[..., None, None], means).add_(log_keys)
    if psi.shape[-1]:
        mass = products(x.psi, psi.transpose(-1, -2)) / torch.where(x.total > 0, x.total, 1)[..., None]
        # w / B is the same for all blocks of a row: the softmax cancels it.
        mass = mass.clamp_(min=LEAST_SHARE).log_().mul_(x.gain[..., None, None])
        scores.unflatten(-1, (-1, parts)).add_(mass[..., None])
    p = softened(scores)
    if opinion > 0:
        p = (1 - opinion) * p + opinion * softened(products(x.q, means).add_(log_keys))
    return p.sum(-3)


def band_shares(x: Queries, on_cpu: Tensor, complete: Tensor, blocks: Blocks, opinion: float) -> Tensor:
    """The probabilities of the first `complete` [B, tiles] blocks, -1 for the others: [B, G, tiles, r, N].

    on_cpu: `complete` on the CPU.
    """
    low, high = int(on_cpu.min()), int(on_cpu.max())
    hidden = torch.arange(low, high, device=complete.device) >= complete[:, None, :, None, None]
    batch, groups, n, tiles, r = x.total.shape
    flat = Queries(x.q.flatten(3, 4), x.psi.flatten(3, 4), x.total.flatten(3, 4), x.current, x.gain, x.pooled_gain)

    def hide(scores: Tensor) -> None:
        by_tile = scores.unflatten(3, (tiles, r))[..., low:, :]
        by_tile.masked_fill_(hidden[:, :, None, ..., None], torch.finfo(scores.dtype).min)

    seen = Blocks(*(y[:, :, :high] for y in (blocks.keys, blocks.logs, blocks.psi)))
    y = shares(flat, seen, hide, opinion)
    y = y.view(batch, groups, tiles, r, high)
    y[..., low:].masked_fill_(hidden, -1)
    return y


def choose_among(x: Queries, survivors: Tensor, tiles: Tensor, level: int, known: Blocks, form: BlockForm) -> Tensor:
    """The blocks that rows choose among those of their super-blocks (section 8.6): [n, r, chosen].

    x, tiles [n, 3]: Queries.at(); survivors [n, r, s] the super-blocks, -1 for none.
    """
    current, inside = x.current[:, None], 1 << level
    last = current >> level  # the incomplete super-block
    table, _ = distinct(torch.cat([survivors.flatten(1), form.fixed(current) >> level, last], 1), 1)
    blocks = (table[..., None] * inside + torch.arange(inside, device=current.device)).flatten(1)
    complete, is_fixed = (blocks >= 0) & (blocks < current), form.is_fixed(blocks, current)
    member = (survivors[..., None] == table[:, None, None]).any(2) | (table == last)[:, None]
    visible = (member.repeat_interleave(inside, -1) | is_fixed[:, None]) & complete[:, None]

    def hide(scores: Tensor) -> None:
        scores.masked_fill_(~visible[:, None, ..., None], torch.finfo(scores.dtype).min)

    b, g = tiles[:, 0, None], tiles[:, 1, None]
    at = blocks.clamp(0, known.keys.shape[2] - 1)
    y = shares(x, Blocks(*(z[b, g, at] for z in (known.keys, known.logs, known.psi))), hide, form.opinion)
    y.masked_fill_(~visible | is_fixed[:, None], -1)
    places = largest_places(y, form.chosen)
    found = blocks[:, None].expand(-1, y.shape[1], -1).gather(2, places.clamp(min=0))
    return found.masked_fill(places < 0, -1)


def choose(x: Queries, known: Blocks, form: BlockForm) -> Tensor:
    """The blocks that each row chooses (sections 8.2, 8.3, 8.6): [B, G, tiles, r, chosen], -1 for none."""
    batch, groups, n, count, r = x.total.shape
    chosen = torch.full((batch, groups, count, r, form.chosen), -1, device=x.q.device)
    current = x.current.cpu()
    levels = form.levels(current)
    budget = SCORED if x.q.device.type == "cpu" else SCORED_ELSEWHERE
    for level in levels.unique().tolist():
        of_level = (levels == level) & (current > 0)
        if not bool(of_level.any()):
            continue
        places = of_level.any(0).nonzero()[:, 0]
        start, end = int(places[0]), int(places[-1]) + 1
        larger = known.larger(level)
        # Tiles of another level in this range, of sequences with other lengths, see no block here.
        current_here = torch.where(of_level, current, 0)
        complete = current_here.to(x.current.device)
        widest = int(current_here.max()) >> level
        for a, b in spans(start, end, budget // (batch * groups * n * r * widest * form.parts)):
            band, see = x.band(a, b), complete[:, a:b] >> level
            y = band_shares(band, current_here[:, a:b] >> level, see, larger, form.opinion)
            if level:
                survivors = largest_places(y, form.survivors * form.chosen)
                at = see[:, None].expand(-1, groups, -1).nonzero()
                found = choose_in_pieces(band, survivors, at, level, known, form, budget)
                chosen[:, :, a:b][at[:, 0], at[:, 1], at[:, 2], :, : found.shape[-1]] = found
                continue
            blocks = torch.arange(y.shape[-1], device=y.device)
            first = max(0, int(current_here[:, a:b].min()) - form.local)
            y[..., : form.sinks] = -1
            y[..., first:].masked_fill_(blocks[first:] >= see[:, None, :, None, None] - form.local, -1)
            found = largest_places(y, form.chosen)
            here = chosen[:, :, a:b, :, : found.shape[-1]]
            here.copy_(torch.where(see[:, None, :, None, None] > 0, found, here))
    return chosen


def choose_in_pieces(
    x: Queries, survivors: Tensor, tiles: Tensor, level: int, known: Blocks, form: BlockForm, budget: int
) -> Tensor:
    """choose_among() for a few of the tiles [n, 3] at a time; survivors [B, G, tiles, r, s]."""
    of_tiles = survivors[tiles[:, 0], tiles[:, 1], tiles[:, 2]]
    r, d = of_tiles.shape[1], x.q.shape[-1]
    # At most these super-blocks in a tile, with a row of scores for every head and a mean key each.
    blocks = min(r * of_tiles.shape[2], form.columns) + form.sinks + form.local + 1
    rows = x.q.shape[2] * r + d
    parts = [
        choose_among(x.at(tiles[a:b]), of_tiles[a:b], tiles[a:b], level, known, form)
        for a, b in spans(0, len(tiles), budget // (blocks * rows * form.parts << level))
    ]
    width = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[-1]), value=-1) for part in parts])


def spans(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `size`, at least 1."""
    size = max(1, size)
    return ((a, min(a + size, end)) for a in range(start, end, size))


def entries_of(choices: Tensor, current: Tensor, form: BlockForm) -> tuple[Tensor, Tensor]:
    """What tiles keep (section 8.4): codes block * tile + first row, [n, .], -1 after the last; numbers [n].

    choices [n, tile, chosen] of the rows; current [n], which is the first of the codes.
    """
    rows = form.tile
    codes = choices * rows + torch.arange(rows, device=current.device)[:, None]
    codes = codes.masked_fill(choices < 0, -1).flatten(1)
    current = current[:, None]
    table, counts = distinct(torch.cat([codes, form.fixed(current) * rows], 1), rows)
    return torch.cat([current * rows, table], 1), counts + 1


# ---- attention


def attend(
    q: Tensor, keys: Tensor, values: Tensor, places: Tensor, codes: Tensor, ordinals: Tensor, form: BlockForm
) -> Tensor:
    """softmax(q k / sqrt(d)) v over what tiles keep: q [t, n, r, d] -> the same.

    keys, values [., e], rows of which `places` [t, .] are those of the blocks of codes [t, U] (entries_of()), one
    after another; ordinals [t, r] of the rows.
    """
    tiles, n, r, d = q.shape
    span, size = codes.shape[1], form.block
    k, v = (x.index_select(0, places.flatten()).view(tiles, 1, span * size, d) for x in (keys, values))
    hidden = (codes < 0)[:, None] | ((ordinals % form.tile)[..., None] < (codes % form.tile)[:, None])
    bias = q.new_zeros(tiles, r, span, size)
    bias.masked_fill_(hidden[..., None], -math.inf)
    current = bias[:, :, 0]  # the current block is never hidden, but its later keys are
    current.masked_fill_(torch.arange(size, device=q.device) > (ordinals % size)[..., None], -math.inf)
    bias = bias.view(tiles, 1, r, span * size).expand(-1, n, -1, -1).reshape(tiles, 1, n * r, -1)
    return F.scaled_dot_product_attention(q.reshape(tiles, 1, n * r, d), k, v, attn_mask=bias).view(q.shape)


@cache
def flex_functions() -> tuple[Any, Any]:
    """flex_attention, compiled for a GPU, and the class of its masks."""
    try:
        from torch.nn.attention.flex_attention import BlockMask, flex_attention
    except ImportError:
        raise ValueError("brine: backend 'flex' needs PyTorch 2.5 or newer") from None
    return (torch.compile(flex_attention) if torch.cuda.is_available() else flex_attention), BlockMask


def attend_by_flex(q: Tensor, k: Tensor, v: Tensor, codes: Tensor, form: BlockForm) -> Tensor:
    """The same by flex_attention: q [B, G, n, tiles, r, d], k, v [B, G, S, d], codes [B, G, tiles, U].

    A tile's rows of all heads of a group are one block of queries, filled up to a power of two. The table of the
    first rows has tiles * S / block numbers.
    """
    batch, groups, n, tiles, r, d = q.shape
    flex_attention, mask_class = flex_functions()
    size, rows, blocks = form.block, 16, k.shape[2] // form.block
    while rows < n * r:
        rows *= 2
    y = F.pad(q.transpose(2, 3).reshape(batch, groups, tiles, n * r, d), (0, 0, 0, rows - n * r))
    first = torch.full((batch, groups, tiles, blocks + 1), form.tile, dtype=torch.int32, device=q.device)
    at = torch.where(codes < 0, blocks, codes // form.tile)
    first.scatter_(3, at, (codes % form.tile).int())
    first = first[..., :blocks].contiguous()

    def mask(b: Tensor, h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        tile, inside = row // rows, row % rows % r
        return (first[b, h, tile, key // size] <= inside) & (key <= tile * r + inside)

    counts = (codes >= 0).sum(-1, dtype=torch.int32)
    order = torch.argsort((first == form.tile).int(), dim=-1, stable=True).int()
    sparse = mask_class.from_kv_blocks(counts, order, BLOCK_SIZE=(rows, size), mask_mod=mask)
    options = {"BLOCK_M": min(rows, 64), "BLOCK_N": min(size & -size, 64)} if y.is_cuda else None
    y = flex_attention(y.flatten(2, 3), k, v, block_mask=sparse, kernel_options=options)
    y = y.view(batch, groups, tiles, rows, d)[:, :, :, : n * r]
    return y.view(batch, groups, tiles, n, r, d).transpose(2, 3)


# ---- the block


@dataclass
class Layout:
    """Where the R new tokens of a call are among tiles.

    Sequence b has `past[b]` tokens before them, without padding, and tiles from the one of the token past[b] on.
    A single new token is alone in its tile, in the first of r = 1 rows.
    """

    past: Tensor  # [B]
    total: Tensor  # [B] with the new tokens
    ordinals: Tensor  # [B, tiles, r] of the rows
    padding: Padding | None
    order: Tensor | None  # [B, R] the new tokens, those that are not padding in front
    count: int

    @staticmethod
    def of(batch: int, count: int, keys: int, tile: int, padding: Padding | None, device: torch.device) -> Layout:
        past = torch.full((batch,), keys - count, device=device)
        total, order = past + count, None
        if padding is not None:
            new = padding.visible[:, keys - count :]
            total = padding.visible.sum(1)
            past = total - new.sum(1)
            order = torch.argsort(new.long(), dim=1, descending=True, stable=True)
        r, tiles, start = 1, 1, past
        if count > 1:
            r, start = tile, past // tile * tile
            tiles = max(1, -(-int((total - start).max()) // r))
        ordinals = start[:, None, None] + torch.arange(tiles * r, device=device).view(tiles, r)
        return Layout(past, total, ordinals, padding, order, count)

    @property
    def rows(self) -> Tensor:
        """[B, tiles r] of the ordinals among the new tokens: negative or not below R where there is no token."""
        return self.ordinals.flatten(1) - self.past[:, None]

    @property
    def valid(self) -> Tensor:
        """[B, tiles r]: rows that are tokens."""
        of_row = self.ordinals.flatten(1)
        return (of_row >= self.past[:, None]) & (of_row < self.total[:, None])

    def current_blocks(self, block: int) -> Tensor:
        """[B, tiles] the blocks that the tiles are in, 0 where no row is a token."""
        first = self.ordinals[..., 0]
        return torch.where(first < self.total[:, None], first // block, 0)

    def by_tiles(self, x: Tensor) -> Tensor:
        """x [B, ., R, e] of the new tokens -> [B, ., tiles r, e], 0 where there is none."""
        if self.order is None:
            ahead, rows = int(self.past[0] - self.ordinals[0, 0, 0]), self.ordinals[0].numel()
            after = rows - ahead - self.count
            return F.pad(x, (0, 0, ahead, after)) if ahead or after else x
        at = self.order.gather(1, self.rows.clamp(0, self.count - 1))
        return rows_at(x, at) * self.valid[:, None, :, None]

    def by_tokens(self, y: Tensor) -> Tensor:
        """The inverse, 0 at padding."""
        ahead = self.past - self.ordinals[:, 0, 0]
        if self.padding is None:
            first = int(ahead[0])
            return y[:, :, first : first + self.count]
        new = self.padding.visible[:, -self.count :]
        at = ahead[:, None] + new.long().cumsum(1) - 1
        return rows_at(y, at.clamp(min=0)) * new[:, None, :, None]

    def keys(self, x: Tensor, first: Tensor | int, count: int) -> Tensor:
        """Those with ordinals from `first` ([B], or the same for all) on, of x [B, ., S, e] in the order of a batch."""
        if isinstance(first, int) and self.padding is None:
            return x[:, :, first : first + count]
        places = torch.as_tensor(first, device=x.device).view(-1, 1) + torch.arange(count, device=x.device)
        places = places.clamp(0, x.shape[2] - 1).expand(len(x), -1)
        return rows_at(x, places if self.padding is None else self.padding.order.gather(1, places))


class BlockAttention(nn.Module):
    """The block of a student with the mask `blocks`. Its parameters have the names of Brine's files.

    k and backend may be changed between calls. If `capture` is a dictionary, a call puts "chosen" and "kept" into
    it: bits [B, G, R, N] of the new tokens' rows and blocks, packed.
    """

    def __init__(self, shape: Shape, settings: SeaSettings):
        super().__init__()
        settings.validate(shape)
        self.shape, self.settings = shape, settings
        self.k, self.backend = settings.k, BACKENDS[0]
        self.capture: dict[str, Tensor] | None = None
        self.gates = nn.Parameter(torch.full((shape.heads, 2), settings.gate_bias))
        self.prior = ColumnPrior(shape, settings)

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
        form = BlockForm.of(self.settings, self.k)
        padding = None if visible is None else Padding.of(visible)
        at = Layout.of(len(q), q.shape[2], k.shape[2], form.tile, padding, q.device)
        wide = torch.float32 if q.dtype.itemsize < 4 else q.dtype
        of_values = at.by_tiles(v[:, :, -at.count :])
        q_tiles = self.grouped(at.by_tiles(q), at)
        with torch.no_grad():
            psi_q, psi_k = self.features(q, k, content, at, wide)
            if store is not None and psi_k.shape[-1]:
                psi_k = store(0, psi_k)
            known = self.complete(k, v, psi_k, at, wide, store)
            d, m = (q.shape[-1] + 1) * form.parts, psi_k.shape[-1]
            chosen = self.choose(q_tiles.to(wide), psi_q, psi_k, known, at, form)
            choices = self.with_earlier(chosen, at, form, store, k.shape[2])
            before = self.before(known[..., d + m :], v, at)
        average = (before + of_values.double().cumsum(2)) / (at.ordinals.flatten(1)[:, None, :, None] + 1)
        y = self.attended(q_tiles, k, v, choices, at, form).to(wide)
        gates = self.gates.to(wide).view(self.shape.groups, -1, 1, 1, 2).sigmoid()
        prob, mix = gates.split(1, dim=-1)
        # [B, G, n, tiles, r, d]
        average = average.to(wide).unflatten(2, at.ordinals.shape[1:])[:, :, None]
        y = mix * prob * y + (1 - mix) * average
        return at.by_tokens(y.flatten(3, 4).flatten(1, 2)).to(q.dtype)

    def grouped(self, x: Tensor, at: Layout) -> Tensor:
        """[B, H, tiles r, e] -> [B, G, H / G, tiles, r, e]."""
        return x.unflatten(2, at.ordinals.shape[1:]).unflatten(1, (self.shape.groups, -1))

    def features(
        self, q: Tensor, k: Tensor, content: tuple[Tensor, Tensor] | None, at: Layout, wide: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """psi of the new tokens' q by tiles and of their k, 0 at padding.

        Without a learned prior both have 0 features, psi of k for all tokens.
        """
        new = k[:, :, -at.count :]
        if self.settings.prior != "learned":
            return self.grouped(at.by_tiles(q[..., :0]), at).to(wide), k[..., :0].to(wide)
        q_content, k_content = (None, None) if content is None else (x.to(wide) for x in content)
        psi_q = self.prior.query(q.to(wide), q_content)
        psi_k = self.prior.key(new.to(wide), k_content)
        if at.padding is not None:
            psi_k = psi_k.masked_fill(~at.padding.visible[:, None, -at.count :, None], 0)
        return self.grouped(at.by_tiles(psi_q), at), psi_k

    def complete(
        self, k: Tensor, v: Tensor, psi_k: Tensor, at: Layout, wide: torch.dtype, store: Store | None
    ) -> Tensor:
        """Of complete blocks: mean keys by part, logarithms of their numbers, sums of psi_k and of v.

        [B, G, N, P d + P + m + d]. Only new blocks are computed.
        """
        size, each = self.settings.block, self.settings.parts
        logs = k.new_empty(*k.shape[:2], 0, each)
        nothing = torch.cat([x[:, :, :0].to(wide) for x in (*[k] * each, logs, psi_k, v)], -1)
        known = nothing if store is None else store(2, nothing)
        first = min(int(at.past.min()) // size, known.shape[2])
        end = int(at.total.max()) // size
        if first >= end:
            return known
        parts = [at.keys(x, first * size, (end - first) * size).to(wide) for x in (k, psi_k, v)]
        of_keys, of_psi, of_values = (x.unflatten(2, (end - first, size)) for x in parts)
        budget = (SCORED if k.device.type == "cpu" else SCORED_ELSEWHERE) // of_keys[:, :, 0].numel()
        found = [clusters(of_keys[:, :, a:b], None, each) for a, b in spans(0, end - first, budget)]
        means, logs = (torch.cat(x, 2) for x in zip(*found, strict=True))
        new = torch.cat([means.flatten(3), logs, of_psi.sum(3), of_values.sum(3)], -1)
        return new if store is None else store(2, new, first)

    def before(self, sums: Tensor, x: Tensor, at: Layout) -> Tensor:
        """The sum of x [B, G, S, e] over a sequence's tokens before the new ones: [B, G, 1, e], in f64."""
        if at.count == x.shape[2]:
            return x.new_zeros(1, 1, 1, x.shape[-1], dtype=torch.float64)
        size = self.settings.block
        complete = at.past // size
        rest = at.keys(x, complete * size, min(size, x.shape[2]))
        inside = (torch.arange(rest.shape[2], device=x.device) < (at.past % size)[:, None])[:, None, :, None]
        whole = (torch.arange(sums.shape[2], device=x.device) < complete[:, None])[:, None, :, None]
        return (sums.double() * whole).sum(2, keepdim=True) + (rest.double() * inside).sum(2, keepdim=True)

    def choose(self, q: Tensor, psi_q: Tensor, psi_k: Tensor, known: Tensor, at: Layout, form: BlockForm) -> Tensor:
        """The blocks that the rows of tokens choose, [B, G, tiles, r, chosen]."""
        d, m = (q.shape[-1] + 1) * form.parts, psi_q.shape[-1]
        total, by_group = q[..., 0], (self.shape.groups, -1)
        gain = self.prior.pooled_gain
        if m:
            gain = self.prior.gain
            running = at.by_tiles(psi_k[:, :, -at.count :]).double().cumsum(2)
            running = (self.before(known[..., d : d + m], psi_k, at) + running).to(q.dtype)
            total = (psi_q * running.unflatten(2, at.ordinals.shape[1:])[:, :, None]).sum(-1)
        gains = (x.to(q.dtype).view(by_group) for x in (gain, self.prior.pooled_gain))
        x = Queries(q, psi_q, total, at.current_blocks(form.block), *gains)
        keys, logs = known[..., : d - form.parts].unflatten(-1, (form.parts, -1)), known[..., d - form.parts : d]
        chosen = choose(x, Blocks(keys, logs, known[..., d : d + m]), form)
        return chosen.masked_fill(~at.valid.view(at.ordinals.shape)[:, None, ..., None], -1)

    def with_earlier(self, chosen: Tensor, at: Layout, form: BlockForm, store: Store | None, keys: int) -> Tensor:
        """The choices of all rows of the tiles, with those of earlier tokens in the first: [B, G, tiles, tile, n].

        A cache has the choices of every token, so that decoding may go on after a cut anywhere.
        """
        inside = torch.arange(form.tile, device=chosen.device)
        first = chosen[:, :, 0]
        if at.ordinals.shape[2] == 1:
            first = torch.where((inside == at.ordinals % form.tile)[:, None, 0, :, None], first, -1)
        if store is not None:
            known = remembered(at.by_tokens(chosen.flatten(2, 3)), keys - at.count, store)
            start = at.past // form.tile * form.tile
            earlier = at.keys(known, start, form.tile).long()
            is_earlier = (start[:, None] + inside < at.past[:, None])[:, None, :, None]
            first = F.pad(first, (0, earlier.shape[-1] - first.shape[-1]), value=-1)
            first = torch.where(is_earlier, earlier, first)
            chosen = F.pad(chosen, (0, earlier.shape[-1] - chosen.shape[-1]), value=-1)
        first = first[:, :, None]
        return torch.cat([first, chosen[:, :, 1:]], 2) if chosen.shape[2] > 1 else first

    def attended(self, q: Tensor, k: Tensor, v: Tensor, choices: Tensor, at: Layout, form: BlockForm) -> Tensor:
        """Attention over the kept blocks, [B, G, n, tiles, r, d]."""
        batch, groups, n, tiles, r, d = q.shape
        size, keys = form.block, k.shape[2]
        ordinals = at.ordinals[:, None].expand(-1, groups, -1, -1).flatten(0, 2)
        current = at.current_blocks(size)[:, None].expand(-1, groups, -1).flatten()
        codes, counts = entries_of(choices.flatten(0, 2), current, form)
        if self.capture is not None:
            self.observe(choices, codes, at, form)
        sequence = torch.arange(batch * groups, device=q.device).repeat_interleave(tiles)[:, None]
        blocks = codes.clamp(min=0) // form.tile
        if at.count > 1:
            ahead = -keys % size
            k, v = (F.pad(at.keys(x, 0, keys), (0, 0, 0, ahead)) for x in (k, v))
            if self.backend == "flex" and at.count == keys:
                return attend_by_flex(q, k, v, codes.view(batch, groups, tiles, -1), form)
            k, v = (x.reshape(-1, size * d) for x in (k, v))
            places = sequence * ((keys + ahead) // size) + blocks
        else:  # single keys, so that nothing of the length of the cache is copied
            of_keys = (blocks[..., None] * size + torch.arange(size, device=q.device)).flatten(1).clamp(max=keys - 1)
            if at.padding is not None:
                of_keys = at.padding.order.repeat_interleave(groups, 0).gather(1, of_keys)
            k, v = (x.reshape(-1, d) for x in (k, v))
            places = sequence * keys + of_keys
        # Tiles that keep about as many blocks are computed together.
        order = counts.argsort(descending=True)
        q = q.permute(0, 1, 3, 2, 4, 5).flatten(0, 2)
        budget = (GATHERED if q.device.type == "cpu" else GATHERED_ELSEWHERE) // (2 * size * d)
        numbers, parts, a = counts[order].tolist(), [], 0
        while a < len(numbers):
            b = a + max(1, budget // numbers[a])
            here, span = order[a:b], numbers[a]
            of_span = span * (places.shape[1] // codes.shape[1])
            inputs = q[here], k, v, places[here, :of_span], codes[here, :span], ordinals[here]
            parts.append(recomputed(attend, *inputs, form))
            a = b
        y = torch.cat(parts)[order.argsort()]
        return y.view(batch, groups, tiles, n, r, d).transpose(2, 3)

    def observe(self, choices: Tensor, codes: Tensor, at: Layout, form: BlockForm) -> None:
        """Fills `capture`."""
        assert self.capture is not None
        batch, groups, tiles = choices.shape[:3]
        blocks = -(-int(at.total.max()) // form.block)
        row = at.ordinals % form.tile  # [B, tiles, r]
        chosen = choices.gather(3, row[:, None, ..., None].expand(-1, groups, -1, -1, choices.shape[-1]))
        codes = codes.view(batch, groups, tiles, 1, -1).expand(-1, -1, -1, row.shape[2], -1)
        seen = (codes >= 0) & (codes % form.tile <= row[:, None, ..., None])
        kept = torch.where(seen, codes // form.tile, -1)
        ahead = (at.past - at.ordinals[:, 0, 0])[:, None] + torch.arange(at.count, device=row.device)
        for name, x in (("chosen", chosen), ("kept", kept)):
            bits = torch.zeros(*x.shape[:-1], blocks + 1, dtype=torch.bool, device=x.device)
            bits.scatter_(-1, torch.where((x < 0) | (x >= blocks), blocks, x), True)
            bits = bits.flatten(2, 3)[..., :blocks] & at.valid[:, None, :, None]
            self.capture[name] = rows_at(bits, ahead.clamp(max=bits.shape[2] - 1))


def remembered(new: Tensor, earlier: int, store: Store) -> Tensor:
    """Choices of all tokens [B, G, S, n], new ones [B, G, R, n] added after `earlier`; n is the largest so far."""
    new = new.int()
    known = store(1, new[:, :, :0])
    before = known.shape[2]
    if before != earlier:
        raise ValueError(f"brine: the cache has keys of {earlier} tokens, but blocks that {before} of them chose")
    if before and known.shape[-1] < new.shape[-1]:
        store(1, F.pad(known, (0, new.shape[-1] - known.shape[-1]), value=-1), 0)
    if before:
        new = F.pad(new, (0, max(0, known.shape[-1] - new.shape[-1])), value=-1)
    return store(1, new)
