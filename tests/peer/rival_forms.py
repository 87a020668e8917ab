"""The rival methods of nn/attention/rivals in PyTorch, causal, one sequence: `rivals.py` times and checks them.

A class is a method. forms() gives its forms by name, each (q, k, v, hidden) -> [H, T, d] for q, k and v [H, T, d] and the layer's
input [T, H d]; all forms compute the same. What depends on positions alone (masks of windows, drawn blocks, angles) is made once, with
the method. Selections are off the tape, as in Brine. Tokens are a multiple of Shape.chunk, Shape.block and k.
"""
import dataclasses
import math

import torch
from torch.nn import functional as F

HIDDEN = -math.inf
SELF = -5e4  # score of a token for itself where it counts only if there is no other one


@dataclasses.dataclass
class Shape:
    """Defaults: those of `brine bench attention` and of each method."""
    heads: int = 12
    size: int = 64
    k: int = 64
    chunk: int = 64  # tokens of a chunk of a causal scan
    rows: int = 256  # queries at a time where each has T scores
    rounds: int = 8  # reformer, scatterbrain
    directions: int = 64  # at most, of a rotation
    iterations: int = 8  # sinkhorn
    temperature: float = 0.75  # sinkhorn
    hidden: int = 64  # synthesizer
    block: int = 16  # block-topk
    rank: int = 16  # tdsa
    index_heads: int = 4
    index_size: int = 32
    dtype: torch.dtype = torch.float32


@dataclasses.dataclass
class Form:
    run: object
    bytes: float = 0  # about what it keeps for the backward pass, where that is much


def fused(q, k, v, seen):
    """Softmax over seen keys; [A, B, n, d], seen of a shape that fits."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def explicit(q, k, v, seen):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~seen, HIDDEN).softmax(-1) @ v


# ---- linear attention

def linear_attention(phi_q, phi_k, v, eps, chunk):
    """phi_q, phi_k [H, T, m], v [H, T, d]: sums of earlier chunks, products inside a chunk."""
    def cut(x):
        return x.view(x.shape[0], -1, chunk, x.shape[-1])

    fq, fk, fv = cut(phi_q), cut(phi_k), cut(v)
    states = F.pad((fk.transpose(-1, -2) @ fv).cumsum(1)[:, :-1], (0, 0, 0, 0, 1, 0))
    sums = F.pad(fk.sum(2).cumsum(1)[:, :-1], (0, 0, 1, 0))
    inside = (fq @ fk.transpose(-1, -2)).tril()
    total = inside.sum(-1, keepdim=True) + fq @ (sums + eps)[..., None]
    return ((inside @ fv + fq @ states) / total).view_as(v)


def linear_by_map(phi_q, phi_k, v, eps):
    """The same by a T x T map."""
    weights = (phi_q @ phi_k.transpose(-1, -2)).tril()
    return weights @ v / (weights.sum(-1, keepdim=True) + eps * phi_q.sum(-1, keepdim=True))


class Linear:
    eps = 0  # added to every entry of a sum of key features

    def __init__(self, shape, tokens):
        self.shape, self.tokens = shape, tokens

    def forms(self):
        def scan(chunk):
            return lambda q, k, v, _: linear_attention(self.features(q), self.features(k), v, self.eps, chunk)

        def by_map(q, k, v, _):
            return linear_by_map(self.features(q), self.features(k), v, self.eps)

        chunk = self.shape.chunk
        maps = 12.0 * self.shape.heads * self.tokens**2
        return {f"chunks of {chunk}": Form(scan(chunk)), f"chunks of {2 * chunk}": Form(scan(2 * chunk)),
                "T x T map": Form(by_map, maps)}


class Performer(Linear):
    eps = 1e-6

    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        d = shape.size
        m = int(d * math.log(d))
        blocks = [torch.linalg.qr(torch.randn(d, d, dtype=shape.dtype))[0] for _ in range(math.ceil(m / d))]
        lengths = torch.randn(m, d, dtype=shape.dtype).norm(dim=-1, keepdim=True)
        self.projection = (torch.cat(blocks)[:m] * lengths).T * d**-0.25  # [d, m]

    def features(self, x):
        return F.relu(x @ self.projection) + 1e-3


class Cosformer(Linear):
    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        angle = math.pi / 2 * torch.arange(tokens, dtype=shape.dtype)[:, None] / tokens
        self.cosine, self.sine = angle.cos(), angle.sin()

    def features(self, x):
        positive = F.relu(x) + 1e-6
        return torch.cat([positive * self.cosine, positive * self.sine], -1)


# ---- attention to chosen keys

def by_rows(q, k, v, rows, mask_of):
    """mask_of(a, b) [H or 1, b - a, b]: which of the first b keys the queries from a to b see."""
    parts = [fused(q[None, :, a:a + rows], k[None, :, :a + rows], v[None, :, :a + rows],
                   mask_of(a, min(a + rows, len(q[0])))[None]) for a in range(0, len(q[0]), rows)]
    return torch.cat(parts, 2)[0]


def by_gathering(q, k, v, rows, keys_of):
    """keys_of(a, b) -> ids [H or 1, b - a, n] and which of them count, for the queries from a to b."""
    heads, tokens, size = q.shape
    first = tokens * torch.arange(heads)[:, None, None]
    table_k, table_v = k.reshape(-1, size), v.reshape(-1, size)  # of F.embedding, whose backward has threads
    parts = []
    for a in range(0, tokens, rows):
        b = min(a + rows, tokens)
        keys, seen = keys_of(a, b)
        at = keys + first
        scores = F.embedding(at, table_k) @ q[:, a:b, :, None] / math.sqrt(size)  # [H, b - a, n, 1]
        p = scores.masked_fill(~seen[..., None], HIDDEN).softmax(-2)
        parts.append((p.transpose(-1, -2) @ F.embedding(at, table_v)).squeeze(-2))
    return torch.cat(parts, 1)


class Choosing:
    """Methods that choose keys by scores: chooser(q, k, hidden) -> keys_of as above."""

    def __init__(self, shape, tokens):
        self.shape, self.tokens = shape, tokens
        self.later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

    def masks(self, keys_of):
        def mask_of(a, b):
            keys, seen = keys_of(a, b)
            # Ids that do not count go to a further column.
            mask = torch.zeros(*keys.shape[:2], b + 1, dtype=torch.bool)
            return mask.scatter_(-1, keys.where(seen, torch.tensor(b)), True)[..., :b]

        return mask_of

    def forms(self):
        rows = self.shape.rows

        def mask(q, k, v, hidden):
            with torch.no_grad():
                keys_of = self.chooser(q, k, hidden)
            return by_rows(q, k, v, rows, torch.no_grad()(self.masks(keys_of)))

        def gather(q, k, v, hidden):
            with torch.no_grad():
                keys_of = self.chooser(q, k, hidden)
            return by_gathering(q, k, v, rows, torch.no_grad()(keys_of))

        each = self.shape.heads * self.tokens
        return {"mask": Form(mask, 2.5 * each * self.tokens),
                "gather": Form(gather, 10.0 * each * self.shape.k * self.shape.size)}

    def largest(self, scores, a, b):
        """Of scores [H or 1, b - a, b]; among fewer than k visible keys all of them."""
        best = scores.masked_fill_(self.later[a:b, :b], HIDDEN).topk(min(self.shape.k, b), sorted=False)
        return best.indices, best.values > HIDDEN


class Tdsa(Choosing):
    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        draws = 6 * torch.rand(shape.size, shape.rank)
        self.signs = ((draws < 1).to(shape.dtype) - ((draws >= 1) & (draws < 2)).to(shape.dtype)) * math.sqrt(3 / shape.rank)
        self.query, self.key = (torch.randn(shape.heads, shape.rank, shape.rank, dtype=shape.dtype) for _ in range(2))

    def chooser(self, q, k, _):
        pq, pk = q @ self.signs @ self.query, k @ self.signs @ self.key
        return lambda a, b: self.largest(pq[:, a:b] @ pk[:, :b].transpose(-1, -2), a, b)


class Indexer(Choosing):
    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        wide, heads, size = shape.heads * shape.size, shape.index_heads, shape.index_size

        def drawn(rows):
            return torch.randn(rows, wide, dtype=shape.dtype) / math.sqrt(wide)

        self.query, self.key, self.weight = drawn(heads * size), drawn(size), drawn(heads)

    def features(self, hidden):
        """Queries [J, T, r], the key [T, r] of all heads, and weights [J, T, 1]."""
        heads, size = self.shape.index_heads, self.shape.index_size
        queries = (hidden @ self.query.T).view(-1, heads, size).transpose(0, 1)
        key = F.layer_norm(hidden @ self.key.T, (size,))
        return queries, key, (hidden @ self.weight.T).T[..., None] / math.sqrt(heads * size)

    def chooser(self, q, k, hidden):
        queries, key, weight = self.features(hidden)

        def keys_of(a, b):
            products = F.relu(queries[:, a:b] @ key[:b].T)  # [J, b - a, b]
            return self.largest((products * weight[:, a:b]).sum(0, keepdim=True), a, b)

        return keys_of


class BlockTopk(Choosing):
    def __init__(self, shape, tokens):
        super().__init__(shape, tokens)
        size, t = shape.block, torch.arange(tokens)
        self.row_blocks = t // size
        self.kept = torch.minimum((2 * (shape.k - t % size - 1) + size).clamp(min=0) // (2 * size), self.row_blocks)
        self.kept[t % size + 1 > shape.k] = 0
        self.max_kept = int(self.kept.max())

    def chooser(self, q, k, _):
        size = self.shape.block
        means = k.unflatten(1, (-1, size)).mean(2)  # [H, blocks, d]
        inside = torch.arange(size)

        def keys_of(a, b):
            row_blocks, kept, blocks = self.row_blocks[a:b, None], self.kept[a:b, None], math.ceil(b / size)
            scores = (q[:, a:b] @ means[:, :blocks].transpose(-1, -2)).masked_fill_(torch.arange(blocks) >= row_blocks, HIDDEN)
            best = scores.topk(min(self.max_kept, blocks))
            chosen = torch.cat([best.indices, row_blocks.expand(len(q), -1, 1)], -1)
            counts = torch.arange(best.indices.shape[-1]) < kept
            counts = F.pad(counts, (0, 1), value=True)[..., None]  # [b - a, blocks, 1]
            keys = chosen[..., None] * size + inside
            seen = counts & (keys <= torch.arange(a, b)[:, None, None])
            return keys.flatten(2), seen.flatten(2)

        return keys_of


# ---- keys that follow from positions

class Placed:
    def mask_form(self, seen):
        """seen [H or 1, T, T]"""
        def run(q, k, v, _):
            return by_rows(q, k, v, self.shape.rows, lambda a, b: seen[:, a:b, :b])

        return Form(run, 3.5 * len(seen) * self.tokens**2)


class Longformer(Placed):
    """The first token and a window of k - 1 keys: chunks of k queries see the chunk before and their chunk."""

    def __init__(self, shape, tokens):
        self.shape, self.tokens, c = shape, tokens, shape.k
        t = torch.arange(tokens)
        self.mask = (((t[:, None] - t < c - 1) | (t == 0)) & (t <= t[:, None]))[None]
        query = t.view(-1, c, 1)  # [chunks, c, 1]
        key = query[:, :1] - c + torch.arange(2 * c)
        window = (key > 0) & (key <= query) & (query - key < c - 1)
        self.seen = F.pad(window, (1, 0), value=True)  # the first key before them

    def forms(self):
        c = self.shape.k

        def windows(x):
            local = x.unflatten(1, (-1, c))
            before = F.pad(local[:, :-1], (0, 0, 0, 0, 1, 0))
            return torch.cat([x[:, None, :1].expand(-1, local.shape[1], -1, -1), before, local], 2)

        def chunks(attend):
            return lambda q, k, v, _: attend(q.unflatten(1, (-1, c)), windows(k), windows(v), self.seen[None]).flatten(1, 2)

        return {"chunks, fused": Form(chunks(fused)), "chunks, softmax": Form(chunks(explicit)),
                "mask": self.mask_form(self.mask)}


class Bigbird(Placed):
    """Blocks of k / 8 keys: 3 of the window, 2 global, 3 drawn; their keys are gathered for each block of queries."""
    window, globals, drawn = 3, 2, 3

    def __init__(self, shape, tokens):
        self.shape, self.tokens = shape, tokens
        self.size = max(1, shape.k // (self.window + self.globals + self.drawn))
        n = tokens // self.size
        row, other = torch.arange(n)[:, None], torch.arange(n)
        always = ((row - other < self.window) | (other < self.globals)) & (other <= row)
        allowed = (other < row) & ~always
        best = torch.rand(shape.heads, n, n).masked_fill(~allowed, -1).topk(min(self.drawn, n))
        blocks = always.repeat(shape.heads, 1, 1).scatter_(
            -1, best.indices, (best.values >= 0) | always.expand(shape.heads, -1, -1).gather(-1, best.indices))
        self.blocks = blocks  # [H, n, n]
        width = int(blocks.sum(-1).max())
        order = blocks.to(torch.uint8).sort(dim=-1, descending=True, stable=True)
        self.ids, self.counts = order.indices[..., :width], order.values[..., :width].bool()  # [H, n, width]
        inside = torch.arange(self.size)
        keys = (self.ids[..., None] * self.size + inside).flatten(2)[:, :, None]  # [H, n, 1, width size]
        query = (row * self.size + inside)[..., None]
        self.seen = self.counts.repeat_interleave(self.size, -1)[:, :, None] & (keys <= query)
        self.rows = self.ids + n * torch.arange(shape.heads)[:, None, None]

    def forms(self):
        size = self.size

        def gathered(x):
            table = x.reshape(-1, size * x.shape[-1])
            return F.embedding(self.rows, table).view(*self.ids.shape[:2], -1, x.shape[-1])

        def blocks(attend):
            return lambda q, k, v, _: attend(q.unflatten(1, (-1, size)), gathered(k), gathered(v), self.seen).flatten(1, 2)

        dense = self.blocks.repeat_interleave(size, 1).repeat_interleave(size, 2).tril()
        return {"blocks, fused": Form(blocks(fused)), "blocks, softmax": Form(blocks(explicit)),
                "mask": self.mask_form(dense)}


# ---- hashing

class Reformer:
    """Shared queries and keys; a token sees the earlier ones of its chunk of a bucket and of the chunk before."""

    def __init__(self, shape, tokens):
        self.shape, self.tokens = shape, tokens
        wanted = max(2, math.ceil(tokens / shape.k))
        self.factors = 0 if tokens <= shape.k else max(1, math.ceil(math.log(wanted, shape.directions) - 1e-9))
        self.half = max(1, (math.ceil(wanted ** (1 / max(1, self.factors)) - 1e-9) + 1) // 2)
        self.rotations = torch.randn(shape.size, shape.rounds * self.factors * self.half, dtype=shape.dtype)

    def buckets(self, q):
        """[H, rounds, T]"""
        rounds = self.shape.rounds
        if self.factors == 0:
            return torch.zeros(len(q), rounds, self.tokens, dtype=torch.long)
        x = (q @ self.rotations).view(len(q), -1, rounds, self.factors, self.half)
        places = torch.cat([x, -x], -1).argmax(-1)
        bucket = places[..., 0]
        for i in range(1, self.factors):
            bucket = bucket * 2 * self.half + places[..., i]
        return bucket.transpose(1, 2)

    @torch.no_grad()
    def sort(self, q):
        """Tokens in the order of their buckets, and where in it the keys of each begin, that end before it: [H, rounds, T]."""
        c, at = self.shape.k, torch.arange(self.tokens)
        bucket, order = self.buckets(q).sort(dim=-1, stable=True)
        new = F.pad(bucket.diff(dim=-1) != 0, (1, 0), value=True)
        start = (new * at).cummax(-1).values
        return order, torch.maximum(start, start + (at - start) // c * c - c)

    @torch.no_grad()
    def mask(self, q):
        """[H, T, T]"""
        heads, tokens, back = len(q), self.tokens, 2 * self.shape.k - 1
        order, begin = self.sort(q)
        at = torch.arange(tokens)
        seen = at[:, None] - back + torch.arange(back) >= begin[..., None]  # [H, rounds, T, back]
        mask = torch.zeros(heads, tokens * tokens, dtype=torch.bool)
        alone = torch.ones(heads, tokens, dtype=torch.bool)
        for i in range(self.shape.rounds):
            query = order[:, i, :, None]
            keys = F.pad(order[:, i], (back, 0)).unfold(-1, back, 1)[:, :tokens]
            pairs = keys.where(seen[:, i], query) + query * tokens  # what is not seen: the diagonal
            mask.scatter_(1, pairs.flatten(1), True)
            alone &= torch.zeros_like(alone).scatter_(1, order[:, i], begin[:, i] == at)
        mask = mask.view(heads, tokens, tokens)
        mask.diagonal(dim1=1, dim2=2).copy_(alone)
        return mask

    def by_mask(self, q, k, v, _):
        mask = self.mask(q)
        return by_rows(q, F.normalize(q, dim=-1), v, self.shape.rows, lambda a, b: mask[:, a:b, :b])

    def by_chunks(self, q, k, v, _):
        """All rounds in chunks of the sorted order, combined by their logsumexp."""
        heads, tokens, size = q.shape
        rounds, c, n = self.shape.rounds, self.shape.k, tokens // self.shape.k
        order, begin = self.sort(q)
        rows = order + tokens * torch.arange(heads)[:, None, None]

        def cut(x):
            return x.unflatten(2, (n, c))

        def windows(x):  # [H, rounds, n, 3 c, ...]: two chunks before and the same one
            padded = torch.cat([x.new_zeros(heads, rounds, 2, *x.shape[3:]), x], 2)
            return torch.cat([padded[:, :, i:i + n] for i in range(3)], 3)

        def sorted_rows(x):
            return cut(F.embedding(rows, x.reshape(-1, size)))

        at = torch.arange(tokens).view(n, c, 1)
        key_at = at[:, :1] - 2 * c + torch.arange(3 * c)
        with torch.no_grad():
            seen = (key_at >= cut(begin)[..., None]) & (key_at < at)  # [H, rounds, n, c, 3 c]
            pairs = (cut(order)[..., None] * tokens + windows(cut(order))[..., None, :]).flatten(1)
            counts = torch.zeros(heads, tokens * tokens, dtype=torch.uint8)
            counts.scatter_add_(1, pairs, seen.to(torch.uint8).flatten(1))
            less = counts.gather(1, pairs).view_as(seen).clamp_(min=1).to(q.dtype).log_()
        scores = sorted_rows(q) @ windows(sorted_rows(F.normalize(q, dim=-1))).transpose(-1, -2) / math.sqrt(size)
        scores = (scores - less).masked_fill(~seen, HIDDEN).masked_fill(key_at == at, SELF)
        weight = scores.logsumexp(-1, keepdim=True)
        y = (scores - weight).exp() @ windows(sorted_rows(v))
        back = order.argsort(-1)[..., None]
        y = y.flatten(2, 3).gather(2, back.expand(-1, -1, -1, size))
        return (weight.flatten(2, 3).gather(2, back).softmax(1) * y).sum(1)

    def forms(self):
        pairs = self.shape.heads * self.tokens * self.shape.rounds * self.shape.k
        return {"mask": Form(self.by_mask, 3.5 * self.shape.heads * self.tokens**2),
                "chunks": Form(self.by_chunks, 3 * 30.0 * pairs + self.shape.heads * self.tokens**2)}


class Scatterbrain:
    def __init__(self, shape, tokens):
        self.sparse, self.low_rank = Reformer(shape, tokens), Performer(shape, tokens)

    def forms(self):
        low_rank = next(iter(self.low_rank.forms().values())).run
        return {name: Form(lambda *x, run=form.run: run(*x) + low_rank(*x), form.bytes)
                for name, form in self.sparse.forms().items()}


# ---- maps that are not softmax(q k)

class Sinkhorn:
    """Buckets of k tokens; a query sees its bucket and a mixture of earlier ones."""

    def __init__(self, shape, tokens):
        self.shape, self.tokens, self.n = shape, tokens, tokens // shape.k
        k, n = shape.k, self.n
        self.query_positions, self.key_positions = (
            torch.randn(shape.heads, n, shape.size, dtype=shape.dtype, requires_grad=True) for _ in range(2))
        self.hidden_buckets = torch.ones(n, n, dtype=torch.bool).triu()
        sorted_one = (torch.arange(n) > 0)[:, None, None].expand(-1, k, k)
        self.seen = torch.cat([sorted_one, torch.ones(k, k, dtype=torch.bool).tril().expand(n, -1, -1)], -1)

    def parameters(self):
        return [self.query_positions, self.key_positions]

    def mixture(self, q, k):
        """[H, buckets, buckets]: rows of queries' buckets, columns of keys'."""
        size, shape = self.shape.k, self.shape
        known = torch.arange(1, self.tokens + 1, size, dtype=q.dtype)[:, None]
        a = q.cumsum(1)[:, ::size] / known + self.query_positions
        b = k.unflatten(1, (-1, size)).mean(2) + self.key_positions
        scores = a @ b.transpose(-1, -2) / (math.sqrt(shape.size) * shape.temperature)

        def rows(x):  # finite: the first row sees nothing
            return x.masked_fill(self.hidden_buckets, -1e30).log_softmax(-1)

        def weights(x):
            return x.exp().masked_fill(self.hidden_buckets, 0)

        x = rows(scores)
        for _ in range(shape.iterations):
            x = rows(x - (weights(x).cumsum(1) + 1e-30).log())
        return weights(x)

    def forms(self):
        def run(attend):
            def form(q, k, v, _):
                mixture = self.mixture(q, k)

                def cut(x):
                    return x.unflatten(1, (self.n, -1))

                def with_sorted(x):
                    local = cut(x)
                    return torch.cat([(mixture @ local.flatten(2)).view_as(local), local], 2)

                return attend(cut(q), with_sorted(k), with_sorted(v), self.seen[None]).flatten(1, 2)

            return form

        return {"fused": Form(run(fused)), "softmax": Form(run(explicit))}


class Synthesizer:
    def __init__(self, shape, tokens):
        self.shape, self.tokens = shape, tokens

        def drawn(*sizes):
            return torch.randn(*sizes, dtype=shape.dtype, requires_grad=True)

        self.first, self.first_bias = drawn(shape.hidden, shape.size), drawn(shape.hidden)
        self.table, self.table_bias = drawn(tokens, shape.hidden), drawn(tokens)
        self.later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)

    def parameters(self):
        return [self.first, self.first_bias, self.table, self.table_bias]

    def maps(self, q, k, v, _):
        scores = F.linear(F.relu(F.linear(q, self.first, self.first_bias)), self.table, self.table_bias)
        return scores.masked_fill(self.later, HIDDEN).softmax(-1) @ v

    def table_as_keys(self, q, k, v, _):
        """No maps: rows of the table are the keys of scaled_dot_product_attention, the bias is a further feature."""
        wide = self.shape.hidden + 1
        hidden = F.pad(F.relu(F.linear(q, self.first, self.first_bias)), (0, 1), value=1.0)
        keys = torch.cat([self.table, self.table_bias[:, None]], 1).expand(len(q), -1, -1)
        y = F.scaled_dot_product_attention(hidden[None], keys[None], F.pad(v, (0, wide - v.shape[-1]))[None], is_causal=True, scale=1.0)
        return y[0, ..., :v.shape[-1]]

    def forms(self):
        return {"maps": Form(self.maps, 12.0 * self.shape.heads * self.tokens**2), "table as keys, fused": Form(self.table_as_keys)}


METHODS = {"performer": Performer, "cosformer": Cosformer, "reformer": Reformer, "sinkhorn": Sinkhorn, "synthesizer": Synthesizer,
           "scatterbrain": Scatterbrain, "longformer": Longformer, "bigbird": Bigbird, "tdsa": Tdsa, "block-topk": BlockTopk,
           "indexer": Indexer}
