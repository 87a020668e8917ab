"""Attention over blocks of keys at fixed positions, chosen by copies of the keys in 4 bits (section 8), in PyTorch.

B sequences, H heads of queries, G of keys and values (head h reads group h // n, n = H / G), d head size, S keys,
R rows (queries). Block b is the keys [b block, (b + 1) block); a tile is `tile` rows, which are in one block, the
current block; F are the tiles of all sequences and groups. Section numbers refer to docs/method.md of Brine. No
tensor has S x S elements: blocks are scored and attended to for a few tiles at a time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention_brine_sea import Padding, Store, of_one_type, rows_at
from .columns_brine_sea import recomputed, spans
from .configuration_brine_sea import BACKENDS, BlockSettings, Shape
from .native_brine_sea import attention_by_library, library_fits

# Elements of the largest tensors of the tiles that are scored, and of keys and values that are gathered: what is
# fast in a CPU's caches, and on other devices what bounds the memory.
SCORED, GATHERED = 1 << 20, 1 << 21
SCORED_ELSEWHERE, GATHERED_ELSEWHERE = 1 << 25, 1 << 25

CALIBRATION = threading.Lock()


# ---- products and threads


@cache
def workers(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of a process whose operations are not divided among others."""
    pool = ThreadPoolExecutor(threads, "brine", torch.set_num_threads, (1,))
    together = threading.Barrier(threads)
    list(pool.map(lambda _: together.wait(), range(threads)))  # all have begun
    torch.set_num_threads(threads)  # of this one and of new ones
    return pool


def for_each(function: Callable[[int, int], None], pieces: Iterable[tuple[int, int]], device: torch.device) -> None:
    """function(a, b) of all pieces, none of which reads another's results. It records no gradients.

    On a CPU each thread takes whole pieces: threads that share every small operation mostly wait for one another.
    """
    threads, pieces, mode = torch.get_num_threads(), list(pieces), torch.is_inference_mode_enabled()

    def run(piece: tuple[int, int]) -> None:
        with torch.inference_mode(mode), torch.no_grad():
            function(*piece)

    if device.type == "cpu" and min(threads, len(pieces)) > 1:
        list(workers(threads, os.getpid()).map(run, pieces))
    else:
        for piece in pieces:
            run(piece)


def by_linear(*inputs: Tensor) -> bool:
    """Whether products of matrices are oneDNN's, of a tile at a time: on a CPU the fastest, but without gradients."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return False
    fits = inputs[0].device.type == "cpu" and inputs[0].dtype == torch.float32
    return fits and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: Tensor, y: Tensor) -> Tensor:
    """x y^T of matrices, if by_linear()."""
    return torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")


def products(x: Tensor, y: Tensor) -> Tensor:
    """x y^T of tiles: [t, r, e], [t, u, e] -> [t, r, u]."""
    if not by_linear(x, y):
        return x @ y.transpose(1, 2)
    y = y.contiguous()  # oneDNN has no fast product for non-contiguous rows
    out = x.new_empty(len(x), x.shape[1], y.shape[1])
    for i in range(len(x)):
        out[i] = linear(x[i], y[i])
    return out


# ---- copies of keys


def packed(codes: Tensor) -> Tensor:
    """Two codes of 4 bits a byte: channel c and channel half + c, [..., d] -> [..., ceil(d / 2)]."""
    half = -(-codes.shape[-1] // 2)
    codes = codes.to(torch.uint8)
    return codes[..., :half] | F.pad(codes[..., half:], (0, codes.shape[-1] % 2)) << 4


def unpacked(pairs: Tensor, d: int) -> Tensor:
    return torch.cat((pairs & 15, pairs >> 4), -1)[..., :d]


def in_steps(keys: Tensor, key_scale: Tensor, kept: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r / a of keys [B, G, N, block, d] of complete blocks (section 8.2), the mean key and the deviations of channels
    [B, G, N, d], and the steps a of keys [B, G, N, block], means and steps as numbers of type `kept`; key_scale
    [., G, 1, 1, d].

    The order of sums is Brine's, so the codes are, too.
    """
    mean = (reduce(torch.add, keys.unbind(3)) / keys.shape[3]).to(kept).to(keys.dtype)
    keys = keys - mean[:, :, :, None]
    deviation = keys.square().mean(3).sqrt()
    keys = keys / key_scale
    steps = (keys.abs().amax(-1) / 7.5).to(kept).to(keys.dtype)
    return keys / torch.where(steps > 0, steps, 1)[..., None], mean, deviation, steps


@dataclass
class Copies:
    """Of N complete blocks (section 8.2): codes z + 8, packed, [B, G, N, block ceil(d / 2)], a row of numbers
    [B, G, N, 2 d + block]: the mean key, the deviations of channels, and the steps a of keys; and their scales
    [G or B G, d].
    """

    codes: Tensor
    numbers: Tensor
    key_scale: Tensor

    @staticmethod
    def of(keys: Tensor, key_scale: Tensor) -> Copies:
        """keys [B, G, N, block, d], key_scale [G, d]."""
        x, *numbers = in_steps(keys, key_scale[:, None, None], keys.dtype)
        return Copies(packed(x.floor_().clamp_(-8, 7) + 8).flatten(3), torch.cat(numbers, -1), key_scale)

    def moments(self, level: int, d: int) -> Tensor:
        """Means and deviations of the complete super-blocks of 2^level blocks, [B, G, N >> level, 2 d]."""
        mean, deviation = self.numbers[..., : 2 * d].split(d, -1)
        for _ in range(level):
            count = mean.shape[2] // 2
            means, of_halves = (x[:, :, : 2 * count].unflatten(2, (count, 2)) for x in (mean, deviation))
            mean = means.mean(3)
            deviation = (of_halves.square() + (means - mean[:, :, :, None]).square()).mean(3).sqrt()
        return torch.cat([mean, deviation], -1)


def calibrated_key_scale(keys: Tensor, complete: Tensor) -> Tensor:
    """The scale of channels [G, d] (section 8.6) of keys [B, G, N, block, d], of which `complete` [B] blocks count.

    1 where a channel is constant.
    """
    counted = torch.arange(keys.shape[2], device=keys.device) < complete[:, None]
    squares = keys.double().var(3, unbiased=False) * counted[:, None, :, None]
    scale = (squares.sum((0, 2)) / counted.sum().clamp(min=1)).sqrt().sqrt()
    return torch.where(scale > 0, scale, 1).to(keys.dtype)


# ---- selection


def largest_indices(values: Tensor, limit: int) -> Tensor:
    """Indices of the `limit` largest of values [..., n] that are not negative, of equal ones the later.

    [..., min(limit, n)]; -1 where there are fewer.
    """
    count = values.shape[-1]
    if limit >= count:
        found, indices = values, torch.arange(count, device=values.device).expand_as(values)
    else:
        found, indices = values.topk(limit, -1, sorted=False)
        last = found.amin(-1, keepdim=True)
        # Of equal ones topk() may choose any.
        tied = ((values >= last).sum(-1) > limit) & (last[..., 0] >= 0)
        if bool(tied.any()):
            order = values[tied].flip(-1).sort(dim=-1, descending=True, stable=True).indices
            indices[tied] = count - 1 - order[:, :limit]
            found = values.gather(-1, indices)
    if bool(torch.isnan(found).any()):
        raise ValueError("brine: scores of blocks are NaN: q or k has a NaN")
    return indices.masked_fill(found < 0, -1)


def distinct(codes: Tensor, divisor: int) -> tuple[Tensor, Tensor]:
    """The smallest code of each value of code // divisor in rows of codes [n, w], ascending, without negative codes.

    [n, largest number of distinct values], -1 after the last, and their number [n].
    """
    missing = torch.iinfo(codes.dtype).max
    codes = codes.masked_fill(codes < 0, missing).sort(-1).values
    values = codes // divisor
    first = codes < missing
    first[:, 1:] &= values[:, 1:] != values[:, :-1]
    indices = first.cumsum(-1) - 1
    counts = indices[:, -1] + 1
    width = int(counts.max())
    out = codes.new_full((len(codes), width + 1), -1)
    out.scatter_(1, torch.where(first, indices, width), codes)
    return out[:, :width], counts


def indices_to_bits(indices: Tensor, count: int) -> Tensor:
    """Bits [..., count] of indices [..., n], -1 for none."""
    bits = torch.zeros(*indices.shape[:-1], count + 1, dtype=torch.bool, device=indices.device)
    return bits.scatter_(-1, torch.where(indices < 0, count, indices), True)[..., :count]


def shares(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax of scores [F, n, r, U] over the blocks that are seen [F, r or 1, U], summed over heads: [F, r, U]."""
    return scores.masked_fill_(~seen[:, None], torch.finfo(scores.dtype).min).softmax(-1).sum(1)


class Chooser:
    """What the blocks of tiles are chosen by: q [F, n, r, d], the blocks `current` [F] that they are in, and the
    indices `owner` [F] of their sequences and groups among those of the copies.
    """

    def __init__(self, q: Tensor, current: Tensor, owner: Tensor, known: Copies, form: BlockSettings):
        self.q, self.current, self.owner, self.known, self.form = q, current, owner, known, form
        self.key_scale = known.key_scale[owner % len(known.key_scale)]
        self.root = q.shape[-1] ** -0.5
        self.budget = SCORED if q.device.type == "cpu" else SCORED_ELSEWHERE

    def choose(self, seen: Tensor | None) -> Tensor:
        """The blocks that the rows choose, [F, r, chosen], -1 for none. Sets bits `seen` [F, r, N] of candidates."""
        form, current, q = self.form, self.current, self.q
        device, n, r = current.device, q.shape[1], q.shape[2]
        free = (current - form.sinks - form.local).clamp(min=0)
        # The result if no scores are needed.
        chosen = form.sinks + torch.arange(max(1, form.chosen), device=device)
        last = form.sinks + free * (form.chosen > 0)
        chosen = torch.where(chosen < last[:, None], chosen, -1)[:, None].repeat(1, r, 1)
        if form.chosen == 0:
            return chosen
        if seen is not None:
            seen |= indices_to_bits(chosen, seen.shape[-1])
        kinds = torch.zeros_like(current)
        while bool((above := (current >> kinds) > form.columns).any()):
            kinds = kinds + above  # the level (section 8.7)
        kinds = kinds.masked_fill(free <= form.candidates, -1).masked_fill(free <= form.chosen, -2).cpu()
        for kind in kinds.unique().tolist():
            if kind == -2:
                continue
            tiles = (kinds == kind).nonzero()[:, 0].to(device)
            larger = self.known.moments(kind, q.shape[-1]) if kind > 0 else None
            each = self.budget // (n * r * int(current[tiles].max()))

            def piece(a: int, b: int, tiles: Tensor = tiles, kind: int = kind, larger: Tensor | None = larger) -> None:
                here = tiles[a:b]
                table, bits = self.complete(here) if kind < 0 else self.candidates(here, kind, larger)
                found = self.second_pass(here, table, bits)
                fixed = self.is_fixed(here, table)
                if seen is not None:
                    at = torch.where(bits & ~fixed, table[:, None], -1)
                    seen[here] = indices_to_bits(at, seen.shape[-1])
                indices = largest_indices(found.masked_fill_(~bits | fixed, -1), form.chosen)
                at = table[:, None].expand(-1, r, -1).gather(2, indices.clamp(min=0))
                chosen[here] = at.masked_fill(indices < 0, -1)

            for_each(piece, spans(0, len(tiles), each), device)
        return chosen

    def is_fixed(self, tiles: Tensor, blocks: Tensor) -> Tensor:
        """Of blocks [F, U]: [F, 1, U]."""
        return ((blocks < self.form.sinks) | (blocks >= self.current[tiles, None] - self.form.local))[:, None]

    def complete(self, tiles: Tensor) -> tuple[Tensor, Tensor]:
        """All complete blocks [F, U], and bits [F, r, U]."""
        current = self.current[tiles]
        table = torch.arange(int(current.max()), device=tiles.device).expand(len(tiles), -1)
        return table, (table < current[:, None])[:, None].expand(-1, self.q.shape[2], -1)

    def candidates(self, tiles: Tensor, level: int, larger: Tensor | None) -> tuple[Tensor, Tensor]:
        """The first pass (sections 8.3, 8.7): the blocks [F, U] that rows score, with bits [F, r, U] of each row."""
        form, (table, pool) = self.form, self.complete(tiles)
        if larger is not None:
            inside, last = 1 << level, (self.current[tiles] >> level)[:, None, None]
            wide = torch.arange(int(last.max()), device=tiles.device).expand(len(tiles), -1)
            seen = wide[:, None] < last
            sums = self.first_pass(tiles, wide, seen, larger).masked_fill_(~seen, -1)
            is_open = indices_to_bits(largest_indices(sums, form.candidates), wide.shape[1])
            is_open = F.pad(is_open.repeat_interleave(inside, -1), (0, inside))[..., : table.shape[1]]
            pool = pool & (is_open | (table[:, None] >= last * inside) | self.is_fixed(tiles, table))
            table, pool = united(table, pool)
        fixed = self.is_fixed(tiles, table)
        sums = self.first_pass(tiles, table, pool, self.known.numbers).masked_fill_(~pool | fixed, -1)
        chosen = indices_to_bits(largest_indices(sums, form.candidates), table.shape[1])
        return united(table, chosen | (fixed & pool))

    def rows_of(self, x: Tensor, tiles: Tensor, blocks: Tensor) -> Tensor:
        """Rows of x [B, G, N, e] of blocks [F, U] of tiles: [F, U, e]."""
        indices = self.owner[tiles, None] * x.shape[2] + blocks
        return x.flatten(0, 2).index_select(0, indices.flatten()).view(*blocks.shape, -1)

    def first_pass(self, tiles: Tensor, table: Tensor, seen: Tensor, moments: Tensor) -> Tensor:
        """Shares [F, r, U] of blocks of `table` [F, U] by their means and deviations, in front in `moments`."""
        q = self.q[tiles]
        both = torch.cat([q, q.abs()], -1).flatten(1, 2)
        moments = self.rows_of(moments, tiles, table)[..., : both.shape[-1]]
        scores = products(both, moments)
        return shares(scores.mul_(self.root).view(*q.shape[:3], -1), seen)

    def second_pass(self, tiles: Tensor, table: Tensor, seen: Tensor) -> Tensor:
        """Shares [F, r, U] of the blocks of `table` [F, U] by the copies of their keys (section 8.4)."""
        q = self.q[tiles]
        d = q.shape[-1]
        w = q * self.key_scale[tiles, None, None] * self.root
        step = w.abs().amax(-1, keepdim=True) / 127
        u = (w / torch.where(step > 0, step, 1)).round_().to(torch.int8).flatten(1, 2)
        step = step.flatten(1)[:, None]
        numbers = self.rows_of(self.known.numbers, tiles, table)
        means, steps = numbers[..., :d], numbers[..., 2 * d :] / 2
        inputs = tiles, table, seen.any(1).sum(1).tolist(), u, steps, step * math.log2(math.e)
        logs = self.key_sums(*inputs, False)
        if bool(logs.isinf().any()):
            logs = self.key_sums(*inputs, True)
        scores = products(means, q.flatten(1, 2)).mul_(self.root).add_(logs)
        return shares(scores.transpose(1, 2).reshape(*q.shape[:3], -1), seen)

    def key_sums(
        self, tiles: Tensor, table: Tensor, counts: list[int], u: Tensor, steps: Tensor, step: Tensor, large: bool
    ) -> Tensor:
        """Logarithms of the sums of 2^score over the keys of blocks, without the mean key's score: [F, U, n r].

        The first `counts` of the blocks of a tile; u [F, n r, d], int8; steps [F, U, block] of keys, step [F, 1, n r]
        of queries. large: scores may be as large as exponents of the type.
        """
        rows, size, d = u.shape[1], steps.shape[2], u.shape[2]
        out = steps.new_ones(*table.shape, rows)
        single = u.device.type == "cpu"  # integer products there are of two matrices
        each = 1 if single else max(1, self.budget // (table.shape[1] * size * max(rows, d)))
        for a in range(0, len(tiles), each):
            b, width = a + each, max(counts[a : a + each])
            pairs = self.rows_of(self.known.codes, tiles[a:b], table[a:b, :width])
            codes = unpacked(pairs.view(len(pairs), width * size, -1), d).view(torch.int8).mul_(2).sub_(15)  # 2 z + 1
            if single:
                y = torch._int_mm(codes[0], u[a].T)[None]
            else:  # exact, too: all sums are below 2^24
                y = codes.float() @ u[a:b].float().transpose(1, 2)
            y = y * steps[a:b, :width].flatten(1)[..., None]
            y = y.mul_(step[a:b]).unflatten(1, (width, size))
            if large:
                out[a:b, :width] = y.mul_(math.log(2)).logsumexp(2)
            else:
                torch.sum(y.exp2_(), 2, out=out[a:b, :width])
        return out if large else out.log_()


def united(table: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """The blocks of table [F, U] that a row has in bits [F, r, U], first in ascending order, and their bits."""
    united = bits.any(1)
    width = int(united.sum(1).max())
    order = united.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    return table.gather(1, order), bits.gather(2, order[:, None].expand(-1, bits.shape[1], -1))


def entries_of(codes: Tensor, current: Tensor, form: BlockSettings) -> tuple[Tensor, Tensor]:
    """What tiles keep (section 8.5): codes block * tile + first row, [n, .], in the order of the rows, -1 after the
    last; numbers [n, 2] of all and of those that row 0 keeps.

    codes [n, .] of what the rows choose, -1 for none; current [n], which is the first of the results.
    """
    rows, current = form.tile, current[:, None]
    sinks = torch.arange(form.sinks, device=current.device).expand(len(current), -1)
    local = current - 1 - torch.arange(form.local, device=current.device)
    fixed = torch.cat([sinks.masked_fill(sinks >= current, -1), local.clamp(min=-1)], 1)
    table, counts = distinct(torch.cat([codes, fixed * rows], 1), rows)
    first = torch.where(table < 0, rows, table % rows)
    table = table.gather(1, first.argsort(dim=1, stable=True))
    return torch.cat([current * rows, table], 1), torch.stack([counts, (first == 0).sum(1)], 1) + 1


# ---- attention


def biases(codes: Tensor, ordinals: Tensor, form: BlockSettings, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """-inf at the blocks of codes [t, U] that the rows with ordinals [t, r] do not see, 0 at others, [t, r, U]; and at
    the keys of the first one, their own, [t, r, block].
    """
    row = ordinals[..., None]
    hidden = (codes < 0)[:, None] | (row % form.tile < (codes % form.tile)[:, None])
    later = torch.arange(form.block, device=codes.device) > row % form.block
    of_blocks, of_keys = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (hidden, later))
    return of_blocks.masked_fill_(hidden, -math.inf), of_keys.masked_fill_(later, -math.inf)


def attend(
    q: Tensor, keys: Tensor, values: Tensor, indices: Tensor, codes: Tensor, ordinals: Tensor, form: BlockSettings
) -> Tensor:
    """softmax(q k / sqrt(d)) v over what tiles keep: q [t, n, r, d] -> the same.

    keys, values [., e], rows of which `indices` [t, .] are those of the blocks of codes [t, U] (entries_of()), one
    after another; ordinals [t, r] of the rows.
    """
    tiles, n, r, d = q.shape
    k, v = (x.index_select(0, indices.flatten()).view(tiles, 1, -1, d).expand(-1, n, -1, -1) for x in (keys, values))
    of_blocks, of_keys = biases(codes, ordinals, form, q.dtype)
    bias = of_blocks[..., None].repeat(1, 1, 1, form.block)
    bias[:, :, 0] = of_keys
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.view(tiles, 1, r, -1))


def attend_by_linear(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    codes: Tensor,
    counts: Tensor,
    ordinals: Tensor,
    form: BlockSettings,
) -> Tensor:
    """The same, a tile at a time, by products of matrices as by_linear() says; counts [t, 2] (entries_of())."""
    _, n, r, d = q.shape
    of_blocks, of_keys = biases(codes, ordinals, form, q.dtype)
    each, numbers = indices.shape[1] // codes.shape[1], counts.tolist()
    rows, out = (q * d**-0.5).flatten(1, 2), torch.empty_like(q)

    def piece(a: int, b: int) -> None:
        for i in range(a, b):
            count, seen = numbers[i]
            k, v = (x.index_select(0, indices[i, : count * each]).view(-1, d) for x in (keys, values))
            scores = linear(rows[i], k)
            by_block = scores.view(n, r, count, form.block)
            by_block[:, :, 0] += of_keys[i]
            if seen < count:
                by_block[:, :, seen:] += of_blocks[i, :, seen:count, None]
            out[i] = linear(scores.softmax(-1), v.T).view(n, r, d)

    for_each(piece, spans(0, len(q), 16), q.device)
    return out


@cache
def flex_functions() -> tuple[Any, Any]:
    """flex_attention, compiled for a GPU, and the class of its masks."""
    try:
        from torch.nn.attention.flex_attention import BlockMask, flex_attention
    except ImportError:
        raise ValueError("brine: backend 'flex' needs PyTorch 2.5 or newer") from None
    return (torch.compile(flex_attention) if torch.cuda.is_available() else flex_attention), BlockMask


def attend_by_flex(q: Tensor, k: Tensor, v: Tensor, codes: Tensor, form: BlockSettings) -> Tensor:
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

    def of_tokens(self, bits: Tensor) -> Tensor:
        """Bits [B, G, tiles, r, N] of the rows of new tokens, packed: [B, G, R, N]."""
        bits = bits.flatten(2, 3) & self.valid[:, None, :, None]
        ahead = (self.past - self.ordinals[:, 0, 0])[:, None] + torch.arange(self.count, device=bits.device)
        return rows_at(bits, ahead.clamp(max=bits.shape[2] - 1))

    def keys(self, x: Tensor, first: int, count: int) -> Tensor:
        """Those with ordinals from `first` on, of x [B, ., S, e] in the order of a batch."""
        if self.padding is None:
            return x[:, :, first : first + count]
        positions = torch.arange(first, first + count, device=x.device).clamp(0, x.shape[2] - 1).expand(len(x), -1)
        return rows_at(x, self.padding.order.gather(1, positions))


class BlockAttention(nn.Module):
    """The attention of a student with blocks. Its buffer has the name of Brine's files.

    k and backend may be changed between calls. With `calibrates` the next call that has a complete block sets key_scale
    by its keys. If `capture` is a dictionary, a call puts "candidates", "chosen" and "kept" into it: bits [B, G, R, N]
    of the new tokens' rows and blocks, packed.
    """

    key_scale: Tensor

    def __init__(self, shape: Shape, settings: BlockSettings):
        super().__init__()
        settings.validate(shape)
        self.shape, self.settings = shape, settings
        self.k, self.backend, self.calibrates = settings.k, BACKENDS[0], False
        self.capture: dict[str, Tensor] | None = None
        self.register_buffer("key_scale", torch.ones(shape.groups, shape.head_size))

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

        visible, bits [B, S]: which tokens are not padding, anywhere; None: all. content is not read. store: the
        cache, if there is one.
        """
        given = v.dtype
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = of_one_type(q, k, v)
            form = self.with_k(self.k)
            padding = None if visible is None else Padding.of(visible)
            at = Layout.of(len(q), q.shape[2], k.shape[2], form.tile, padding, q.device)
            if padding is None and q.shape[2] == k.shape[2] and self.capture is None and library_fits(q, k, v):
                return self.by_library(q, k, v, at, form, store).to(given)
            # [B, G, n, tiles, r, d]
            q_tiles = at.by_tiles(q).unflatten(2, at.ordinals.shape[1:]).unflatten(1, (self.shape.groups, -1))
            with torch.no_grad():
                chosen = self.choose(q_tiles, self.copies(k, v, at, form, store), at, form)
                codes, counts = self.entries(chosen, at, form, store)
                if self.capture is not None:
                    self.observe(chosen, codes, at, form)
            y = self.attended(q_tiles, k, v, codes, counts, at, form)
            return at.by_tokens(y.flatten(3, 4).flatten(1, 2)).to(given)

    def by_library(
        self, q: Tensor, k: Tensor, v: Tensor, at: Layout, form: BlockSettings, store: Store | None
    ) -> Tensor:
        """forward() of whole sequences; a cache gets what further tokens need."""
        if store is not None or self.calibrates:
            with torch.no_grad():
                self.copies(k, v, at, form, store)
        y, chosen = attention_by_library(q, k, v, self.key_scale, form)
        if store is not None:
            chosen = F.pad(chosen, (0, 0, 0, at.ordinals[0].numel() - at.count), value=-1)
            self.entries(chosen.unflatten(2, at.ordinals.shape[1:]), at, form, store)
        return y

    def with_k(self, k: int) -> BlockSettings:
        """The settings with another number of keys that a row keeps."""
        if k == self.settings.k:
            return self.settings
        form = replace(self.settings, k=k)
        form.validate(self.shape)
        return form

    def copies(self, k: Tensor, v: Tensor, at: Layout, form: BlockSettings, store: Store | None) -> Copies:
        """The copies of all complete blocks. Only new ones are computed; a cache in 8 bits has those of its keys."""
        size, end, d = form.block, int(at.total.max()) // form.block * (form.chosen > 0), k.shape[-1]
        wide = torch.float32 if k.dtype.itemsize < 4 else k.dtype
        if self.calibrates and end:
            with CALIBRATION:  # threads may share a model
                if self.calibrates:
                    keys = at.keys(k, 0, end * size).to(wide).unflatten(2, (end, size))
                    self.key_scale.copy_(calibrated_key_scale(keys, at.total // size))
                self.calibrates = False
        scale = self.key_scale.to(wide)
        if store is not None and end and at.padding is None and (coded := store.coded(k, v, scale, size)) is not None:
            if int(at.past[0]) >= size:
                return Copies(*coded)
            store = None  # all blocks are of this pass, which chooses as without a cache: by its exact keys
        codes = k.new_empty(*k.shape[:2], 0, size * -(-d // 2), dtype=torch.uint8)
        numbers = k.new_empty(*k.shape[:2], 0, 2 * d + size, dtype=wide)
        if store is not None:
            codes, numbers = store(0, codes), store(2, numbers)
        first = min(int(at.past.min()) // size, codes.shape[2])
        if first >= end:
            return Copies(codes, numbers, scale)
        keys = at.keys(k, first * size, (end - first) * size).to(wide).unflatten(2, (end - first, size))
        budget = (SCORED if k.device.type == "cpu" else SCORED_ELSEWHERE) // keys[:, :, 0].numel()
        parts = [Copies.of(keys[:, :, a:b], scale) for a, b in spans(0, end - first, budget)]
        codes, numbers = (torch.cat(x, 2) for x in zip(*((y.codes, y.numbers) for y in parts), strict=True))
        if store is not None:
            codes, numbers = store(0, codes, first), store(2, numbers, first)
        return Copies(codes, numbers, scale)

    def choose(self, q: Tensor, known: Copies, at: Layout, form: BlockSettings) -> Tensor:
        """The blocks that the rows of tokens choose, [B, G, tiles, r, chosen]."""
        batch, groups, _, tiles, r, _ = q.shape
        current = at.current_blocks(form.block)[:, None].expand(-1, groups, -1).flatten()
        owner = torch.arange(batch * groups, device=q.device).repeat_interleave(tiles)
        seen = None
        if self.capture is not None:
            blocks = -(-int(at.total.max()) // form.block)
            seen = torch.zeros(len(current), r, blocks, dtype=torch.bool, device=q.device)
        of_tiles = q.transpose(2, 3).flatten(0, 2).to(known.numbers.dtype)
        chosen = Chooser(of_tiles, current, owner, known, form).choose(seen).view(batch, groups, tiles, r, -1)
        if self.capture is not None and seen is not None:
            self.capture["candidates"] = at.of_tokens(seen.view(batch, groups, tiles, r, -1))
        return chosen.masked_fill(~at.valid.view(at.ordinals.shape)[:, None, ..., None], -1)

    def entries(self, chosen: Tensor, at: Layout, form: BlockSettings, store: Store | None) -> tuple[Tensor, Tensor]:
        """entries_of() the tiles [B G tiles] of new tokens, whose rows choose [B, G, tiles, r, n].

        A cache has the entries of every tile, so that decoding may continue after any crop(): the number of rows that
        were seen, then the codes without that of the current block.
        """
        batch, groups, tiles = chosen.shape[:3]
        rows, first = form.tile, at.past // form.tile
        current = at.current_blocks(form.block)[:, None].expand(-1, groups, -1).flatten()
        codes = chosen * rows + (at.ordinals % rows)[:, None, ..., None]
        codes = codes.masked_fill(chosen < 0, -1).flatten(3)
        if store is None:
            return entries_of(codes.flatten(0, 2), current, form)
        past, none = int(at.past.max()), codes[:, :, :0, :1]
        known = store(1, none) if past else none  # a cache that was reset may have those of another batch
        seen = int(known[..., 0].sum(2).max())
        if seen < past:
            raise ValueError(f"brine: of {past} tokens in the cache blocks have seen {seen}; fill a new cache")
        if seen:
            earlier = rows_at(known[..., 1:], first[:, None].clamp(max=known.shape[2] - 1)).long()
            earlier = earlier.masked_fill(earlier % rows >= (at.past % rows)[:, None, None, None], -1)
            codes = torch.cat([codes, F.pad(earlier, (0, 0, 0, tiles - 1), value=-1)], 3)
        table, counts = entries_of(codes.flatten(0, 2), current, form)
        numbers = first[:, None] + torch.arange(tiles, device=first.device)  # of the tiles
        end, width = int(numbers.max()) + 1, max(table.shape[1], known.shape[3])
        kind = torch.int16 if (end + 1) * rows <= 1 << 15 else torch.int32
        new = F.pad(table, (0, width - table.shape[1]), value=-1).unflatten(0, (batch, groups, tiles)).to(kind)
        kept = new.new_full((batch, groups, end, width), -1)
        kept[:, :, : known.shape[2], : known.shape[3]] = known[:, :, :end]
        kept.scatter_(2, numbers[:, None, :, None].expand_as(new), new)
        kept[..., 0] = (at.total[:, None] - rows * torch.arange(end, device=first.device)).clamp(0, rows)[:, None]
        store(1, kept, 0)
        return table, counts

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, codes: Tensor, counts: Tensor, at: Layout, form: BlockSettings
    ) -> Tensor:
        """Attention over the kept blocks (entries_of()), [B, G, n, tiles, r, d]."""
        batch, groups, n, tiles, r, d = q.shape
        size, keys = form.block, k.shape[2]
        ordinals = at.ordinals[:, None].expand(-1, groups, -1, -1).flatten(0, 2)
        sequence = torch.arange(batch * groups, device=q.device).repeat_interleave(tiles)[:, None]
        blocks = codes.clamp(min=0) // form.tile
        if at.count > 1:
            ahead = -keys % size
            k, v = (F.pad(at.keys(x, 0, keys), (0, 0, 0, ahead)) for x in (k, v))
            if self.backend == "flex" and at.count == keys:
                return attend_by_flex(q, k, v, codes.view(batch, groups, tiles, -1), form)
            k, v = (x.reshape(-1, size * d) for x in (k, v))
            indices = sequence * ((keys + ahead) // size) + blocks
        else:  # single keys, so that nothing of the length of the cache is copied
            of_keys = (blocks[..., None] * size + torch.arange(size, device=q.device)).flatten(1).clamp(max=keys - 1)
            if at.padding is not None:
                of_keys = at.padding.order.repeat_interleave(groups, 0).gather(1, of_keys)
            k, v = (x.reshape(-1, d) for x in (k, v))
            indices = sequence * keys + of_keys
        q = q.transpose(2, 3).flatten(0, 2)
        if by_linear(q, k, v):
            y = attend_by_linear(q, k, v, indices, codes, counts, ordinals, form)
            return y.view(batch, groups, tiles, n, r, d).transpose(2, 3)
        # Tiles that keep about as many blocks are computed together.
        order = counts[:, 0].argsort(descending=True)
        budget = (GATHERED if q.device.type == "cpu" else GATHERED_ELSEWHERE) // (2 * size * d)
        numbers, parts, a = counts[order, 0].tolist(), [], 0
        while a < len(numbers):
            b = a + max(1, budget // numbers[a])
            here, span = order[a:b], numbers[a]
            of_span = span * (indices.shape[1] // codes.shape[1])
            inputs = q[here], k, v, indices[here, :of_span], codes[here, :span], ordinals[here]
            parts.append(recomputed(attend, *inputs, form))
            a = b
        y = torch.cat(parts)[order.argsort()]
        return y.view(batch, groups, tiles, n, r, d).transpose(2, 3)

    def observe(self, chosen: Tensor, codes: Tensor, at: Layout, form: BlockSettings) -> None:
        """Adds to `capture`."""
        assert self.capture is not None
        batch, groups, tiles = chosen.shape[:3]
        blocks = self.capture["candidates"].shape[-1]
        row = at.ordinals % form.tile  # [B, tiles, r]
        codes = codes.view(batch, groups, tiles, 1, -1).expand(-1, -1, -1, row.shape[2], -1)
        seen = (codes >= 0) & (codes % form.tile <= row[:, None, ..., None])
        kept = torch.where(seen, codes // form.tile, -1)
        for name, x in (("chosen", chosen), ("kept", kept)):
            self.capture[name] = at.of_tokens(indices_to_bits(torch.where(x < blocks, x, -1), blocks))
