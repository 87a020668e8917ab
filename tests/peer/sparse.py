#!/usr/bin/env python3
"""Sparse attention by libraries of sparse matrices, at the size of `brine bench coo`.

T = 8192, 12 heads, d = 64, K = k = 64, causal, uniformly random columns, f32: the masks of Brine's bench
up to the random numbers. Each head is a T x T matrix in CSR:

- PyTorch: torch.sparse.sampled_addmm makes the scores of the entries, softmax runs over the values of a
  row (the same number for almost all of them, so padded rows), `@` multiplies with v. Backward by hand
  with the same ops, since sampled_addmm has no gradient on CSR tensors.
- PyTorch's own COO tensors: torch.sparse.mm with autograd for the product with v, torch.sparse.softmax.
- SciPy: the product with v alone, `csr_matrix @ v`; one thread, no sampled product.
"""
import argparse
import warnings

import numpy as np
import torch

from timing import median_ms

HEADS, SIZE, COLUMNS, KEPT = 12, 64, 64, 64


def random_mask(tokens, generator):
    """Keys of each row of a head, as lists in rising order: random columns of the widest K."""
    rows = []
    edges = np.arange(COLUMNS + 1)
    for t in range(tokens):
        width = t + 1
        if width <= KEPT:
            rows.append(np.arange(width))
            continue
        begin = (2 * edges * width + COLUMNS) // (2 * COLUMNS)
        real = np.flatnonzero(np.diff(begin))
        wanted = max(1, round(KEPT * min(COLUMNS, width) / width))
        keys = []
        for c in generator.choice(real, min(wanted, len(real)), replace=False):
            size = begin[c + 1] - begin[c]
            if size > KEPT:
                keys.append(begin[c + 1] - 1 - np.arange(KEPT) * size // KEPT)
            else:
                keys.append(np.arange(begin[c], begin[c + 1]))
        rows.append(np.sort(np.concatenate(keys)))
    return rows


class Head:
    """One head's mask in the index types that the libraries take."""

    def __init__(self, tokens, generator, index):
        rows = random_mask(tokens, generator)
        counts = np.array([len(r) for r in rows])
        self.tokens = tokens
        self.pointers = torch.tensor(np.concatenate([[0], counts.cumsum()]), dtype=index)
        self.keys = torch.tensor(np.concatenate(rows), dtype=index)
        self.rows = torch.tensor(np.repeat(np.arange(tokens), counts))

    def csr(self, values):
        return torch.sparse_csr_tensor(self.pointers, self.keys, values, (self.tokens, self.tokens),
                                       check_invariants=False)

    def transposed(self):
        """The mask by keys, and the position of each of its entries in the mask by rows."""
        order = torch.argsort(self.keys.long() * self.tokens + self.rows)
        counts = torch.bincount(self.keys.long(), minlength=self.tokens)
        pointers = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]).to(self.keys.dtype)
        return pointers, self.rows[order].to(self.keys.dtype), order


class Csr:
    """Forward and backward on CSR matrices, head by head."""

    def __init__(self, heads):
        self.heads = heads
        self.by_key = [h.transposed() for h in heads]
        self.zeros = [h.csr(torch.zeros(len(h.keys))) for h in heads]

    def forward(self, q, k, v):
        self.p, out = [], torch.empty_like(q)
        for i, head in enumerate(self.heads):
            scores = torch.sparse.sampled_addmm(self.zeros[i], q[i], k[i].T, beta=0, alpha=SIZE**-0.5)
            values = scores.values()
            most = torch.segment_reduce(values, "max", offsets=head.pointers.long())
            p = (values - most[head.rows]).exp_()
            p /= torch.segment_reduce(p, "sum", offsets=head.pointers.long())[head.rows]
            self.p.append(p)
            out[i] = head.csr(p) @ v[i]
        return out

    def backward(self, dy, q, k, v):
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for i, head in enumerate(self.heads):
            p, (pointers, rows, order) = self.p[i], self.by_key[i]
            dp = torch.sparse.sampled_addmm(self.zeros[i], dy[i], v[i].T, beta=0).values()
            ds = p * dp
            ds -= p * torch.segment_reduce(ds, "sum", offsets=head.pointers.long())[head.rows]
            ds *= SIZE**-0.5
            dq[i] = head.csr(ds) @ k[i]

            def by_key(values):
                return torch.sparse_csr_tensor(pointers, rows, values[order], (head.tokens, head.tokens),
                                               check_invariants=False)

            dk[i] = by_key(ds) @ q[i]
            dv[i] = by_key(p) @ dy[i]
        return dq, dk, dv


class CooAutograd:
    """torch.sparse.softmax and torch.sparse.mm on COO tensors, whose gradients PyTorch knows."""

    def __init__(self, heads):
        self.at = [torch.stack([h.rows, h.keys.long()]) for h in heads]

    def forward(self, q, k, v):
        out = []
        for i, at in enumerate(self.at):
            values = (q[i][at[0]] * k[i][at[1]]).sum(-1) * SIZE**-0.5
            tokens = q.shape[1]
            p = torch.sparse.softmax(torch.sparse_coo_tensor(at, values, (tokens, tokens),
                                                             is_coalesced=True), 1)
            out.append(torch.sparse.mm(p, v[i]))
        return torch.stack(out)


def dense(q, k, v, heads):
    out = []
    for i, head in enumerate(heads):
        mask = torch.full((head.tokens, head.tokens), -torch.inf)
        mask[head.rows, head.keys.long()] = 0
        out.append((q[i] @ k[i].T * SIZE**-0.5 + mask).softmax(-1) @ v[i])
    return torch.stack(out)


def largest_difference(a, b):
    return float((a - b).abs().max() / b.abs().max())


def check_small(index):
    """The CSR and COO forms against dense attention, with their gradients, at 200 tokens."""
    generator = np.random.default_rng(2)
    heads = [Head(200, generator, index) for _ in range(2)]
    q, k, v = (torch.randn(2, 200, SIZE, requires_grad=True) for _ in range(3))
    dy = torch.randn(2, 200, SIZE)
    wanted = dense(q, k, v, heads)
    gradients = torch.autograd.grad(wanted, (q, k, v), dy)
    csr, coo = Csr(heads), CooAutograd(heads)
    with torch.no_grad():
        pairs = [(csr.forward(q, k, v), wanted)] + list(zip(csr.backward(dy, q, k, v), gradients))
    by_coo = coo.forward(q, k, v)
    pairs += [(by_coo, wanted)] + list(zip(torch.autograd.grad(by_coo, (q, k, v), dy), gradients))
    worst = max(largest_difference(a.detach(), b.detach()) for a, b in pairs)
    if not worst < 1e-4:
        raise SystemExit(f"the sparse forms differ from dense attention by {worst}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--tokens", type=int, default=8192)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "Sparse ")  # of PyTorch: beta, unchecked invariants
    torch.set_num_threads(args.threads)
    generator = np.random.default_rng(1)
    shape = (HEADS, args.tokens, SIZE)
    q, k, v, dy = (torch.rand(shape) for _ in range(4))
    print(f"PyTorch {torch.__version__}, {args.threads} threads, T = {args.tokens}, 12 heads of 64")

    def show(name, run):
        print(f"{median_ms(run, args.seconds):10.1f} ms  {name}", flush=True)

    heads = None
    for index in (torch.int32, torch.int64):
        name = str(index).removeprefix("torch.")
        check_small(index)
        generator = np.random.default_rng(1)
        heads = [Head(args.tokens, generator, index) for _ in range(HEADS)]
        entries = sum(len(h.keys) for h in heads)
        csr = Csr(heads)

        def both():
            csr.forward(q, k, v)
            csr.backward(dy, q, k, v)

        print(f"CSR with {name}, {entries / 1e6:.1f} M entries")
        with torch.no_grad():
            show("forward", lambda: csr.forward(q, k, v))
            show("forward + backward", both)
    coo = CooAutograd(heads)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def walk():
        for leaf in leaves:
            leaf.grad = None
        coo.forward(*leaves).backward(dy)

    print("COO, torch.sparse.softmax and torch.sparse.mm")
    with torch.no_grad():
        show("forward", lambda: coo.forward(q, k, v))
    show("forward + backward", walk)
    try:
        from scipy.sparse import csr_matrix
    except ImportError:
        return
    square = (args.tokens, args.tokens)
    matrices = [csr_matrix((p.numpy(), h.keys.numpy(), h.pointers.numpy()), square)
                for p, h in zip(csr.p, heads)]
    values = [x.numpy() for x in v]
    print("SciPy, one thread")
    show("the product with v alone", lambda: [m @ x for m, x in zip(matrices, values)])


if __name__ == "__main__":
    main()
