#!/usr/bin/env python3
"""SEA attention as an ordinary PyTorch user writes it, with T x T matrices: `distill.py` trains it.

Causal, preset `paper`, ReLU features, with the prior, budgets shared by the heads of a query. Run as a
program it compares itself with a golden file of Brine (tests/golden/causal_paper_t12.h5, needs h5py) in
f64: stages, losses and the gradient of every input and parameter.
"""
import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F


class Columns:
    """Which key belongs to which of K columns, for every row of T tokens."""

    def __init__(self, tokens, width, k, heads):
        rows = torch.arange(1, tokens + 1)  # keys that a row sees
        edges = torch.arange(width + 1)
        self.begin = (2 * edges * rows[:, None] + width) // (2 * width)  # [T, K + 1]
        self.sizes = self.begin.diff(dim=-1)  # [T, K]
        self.owned = self.sizes > 0
        keys = torch.arange(tokens)
        self.visible = keys <= keys[:, None]
        self.bias = torch.zeros(tokens, tokens).masked_fill(~self.visible, -math.inf)
        # The column of each key; hidden keys are given the last one.
        self.of_key = (torch.searchsorted(self.begin, keys.expand(tokens, -1).contiguous(), right=True) - 1)
        self.of_key.clamp_(max=width - 1)
        # A column of more than k keys gives k of them, evenly spaced from its last one.
        kept = torch.zeros(tokens, tokens, dtype=torch.bool)
        for i in range(k):
            back = torch.where(self.sizes > k, i * self.sizes // k, torch.full_like(self.sizes, i))
            at = self.begin[:, 1:] - 1 - back
            inside = (back < self.sizes) & self.owned
            row = torch.arange(tokens)[:, None].expand_as(at)
            kept[row[inside], at[inside]] = True
        self.kept = kept
        self.all = rows <= k  # rows that see every visible key
        real = torch.minimum(rows, torch.tensor(width))
        wanted = [round_half_even(heads * k * int(r), int(w)) for r, w in zip(real, rows)]
        self.budget = torch.minimum(torch.tensor(wanted).clamp(min=heads), heads * real)  # [T]


def round_half_even(numerator, denominator):
    quotient, rest = divmod(numerator, denominator)
    return quotient + (2 * rest > denominator or (2 * rest == denominator and quotient % 2 == 1))


class SeaAttention(nn.Module):
    """q, k, v [B, H, T, d] -> context [B, H, T, d] and what the losses need."""

    def __init__(self, tokens, heads, size, width, k, features):
        super().__init__()
        self.heads, self.size, self.width, self.reduced = heads, size, width, width // 2
        self.columns = Columns(tokens, width, k, heads)
        self.register_buffer("projection", torch.randn(features, size))
        self.identity = nn.Parameter(torch.randn(tokens, size))
        self.mu, self.mu_norm = nn.Linear(3 * size, 2 * size), nn.LayerNorm(2 * size)
        self.nu = nn.Linear(2 * size, 4 * self.reduced)
        self.norm_in = nn.LayerNorm(self.reduced)
        channels = 4 * heads
        self.conv1 = nn.Conv2d(channels, channels, 3)
        self.conv2 = nn.Conv2d(channels, channels, 3)
        self.conv_out = nn.Conv2d(channels, heads, 3, bias=False)
        self.norm_out = nn.LayerNorm(width)
        self.prior = nn.Parameter(torch.ones(heads))
        self.scaler = nn.Linear(2 * size, 2)

    def features(self, x):
        return F.relu(x * self.size**-0.25 @ self.projection.T) + 1e-3

    def performer(self, q, k, v):
        """The linear attention over the past, as a T x T matrix, and its mass in each column."""
        of_q, of_k = self.features(q), self.features(k)
        # The mass of the first keys, by sums of features: cheaper than sums over the matrix.
        sums = of_q @ F.pad(of_k.cumsum(2), (0, 0, 1, 0)).transpose(-1, -2)
        sums = sums.gather(-1, self.columns.begin.expand(*v.shape[:2], -1, -1))
        total = sums[..., -1:]
        identity = self.identity.expand(*v.shape[:2], -1, -1)
        a = (of_q @ of_k.transpose(-1, -2)).tril()
        norm = total + 1e-6 * of_q.sum(-1, keepdim=True)
        return a @ torch.cat([identity, v], -1) / norm, sums.diff(dim=-1) / total

    def scores(self, z, mass):
        batch, heads, tokens, _ = z.shape
        image = self.nu(z).view(batch, heads, tokens, 4, self.reduced)
        x = image.permute(0, 1, 3, 2, 4).reshape(batch, 4 * heads, tokens, self.reduced)
        x = self.norm_in(x)
        for conv in (self.conv1, self.conv2):
            x = F.relu(conv(F.pad(x, (1, 1, 2, 0))))
        x = self.conv_out(F.pad(x.repeat_interleave(2, dim=-1), (1, 1, 2, 0)))
        columns = self.columns
        share = mass * (torch.arange(1, tokens + 1, device=z.device)[:, None] / columns.sizes.clamp(min=1))
        share = share.masked_fill(~columns.owned, 1)
        return self.norm_out(x) + self.prior[:, None, None] * share.log()

    def mask(self, estimate):
        """[B, H, T, T]: the keys of the columns with the largest estimates of a row of all heads."""
        columns = self.columns
        batch, heads, tokens, width = estimate.shape
        row = estimate.transpose(1, 2).reshape(batch, tokens, heads * width)
        falling = row.sort(dim=-1, descending=True).values
        least = falling.gather(-1, (columns.budget - 1).expand(batch, -1)[..., None])
        chosen = (row >= least).view(batch, tokens, heads, width).transpose(1, 2) & columns.owned
        of_keys = chosen.gather(-1, columns.of_key.expand(batch, heads, -1, -1))
        return (of_keys & columns.kept) | (columns.visible & columns.all[:, None])

    def forward(self, q, k, v):
        c_perf, mass = self.performer(q, k, v)
        z = F.gelu(self.mu_norm(self.mu(torch.cat([c_perf, v], -1))))
        scores = self.scores(z, mass)
        estimate = scores.masked_fill(~self.columns.owned, -math.inf).softmax(-1)
        with torch.no_grad():
            mask = self.mask(estimate)
        qk = scores_of(q, k) / math.sqrt(self.size)
        sparse = qk.masked_fill(~mask, -math.inf).softmax(-1) @ v
        count = torch.arange(1, v.shape[2] + 1, device=v.device, dtype=v.dtype)[:, None]
        prob, mix = torch.sigmoid(self.scaler(z)).split(1, dim=-1)
        context = mix * prob * sparse + (1 - mix) * (v.cumsum(2) / count)
        return context, scores, qk


class TeacherMap:
    """Dense attention [B, H, T, T] and what the losses need of it."""

    def __init__(self, q, k, columns):
        self.rows = q.shape[:-1].numel()
        self.map = dense_map(q, k, columns.bias)
        # Hidden keys are 0, of which the logarithm is not needed: their t log t is 0.
        self.t_log_t = torch.dot(self.map.view(-1), (self.map + 1e-38).log_().view(-1)) / self.rows

    def distance(self, scores, columns):
        """KL and mean square of the rows softmax(scores) over the visible keys."""
        log_a = (scores + columns.bias).log_softmax(-1)
        cross = torch.dot(self.map.view(-1), log_a.masked_fill(~columns.visible, 0).view(-1))
        return self.t_log_t - cross / self.rows, F.mse_loss(log_a.exp(), self.map)


def approx_by_maps(scores, teacher, columns):
    """L_approx by the estimate widened to T x T."""
    wide = scores.gather(-1, columns.of_key.expand(*scores.shape[:2], -1, -1))
    return teacher.distance(wide, columns)


def approx_by_columns(scores, teacher, columns):
    """The same in K columns."""
    sums = F.pad(teacher.map.cumsum(-1), (1, 0))
    tau = sums.gather(-1, columns.begin.expand(*scores.shape[:2], -1, -1)).diff(dim=-1)
    sizes = columns.sizes.to(scores.dtype)
    lse = (scores + sizes.log()).logsumexp(-1, keepdim=True)
    a = (scores - lse).exp().masked_fill(~columns.owned, 0)
    square = (sizes * a.square() - 2 * a * tau).sum() + torch.dot(teacher.map.view(-1), teacher.map.view(-1))
    return (teacher.t_log_t + (tau * (lse - scores)).sum() / teacher.rows,
            square / (teacher.rows * scores.shape[2]))


def scores_of(q, k):
    """q k^T, in f32 where autocast has multiplied in 16 bits: masks and softmax need it."""
    scores = q @ k.transpose(-1, -2)
    return scores.float() if scores.element_size() == 2 else scores


def dense_map(q, k, bias):
    return scores_of(q, k).mul_(q.shape[-1] ** -0.5).add_(bias).softmax(-1)


GOLDEN_NAMES = {
    "v_identity.table": "identity", "mu.linear": "mu", "mu.norm": "mu_norm", "nu": "nu",
    "decoder.norm_in": "norm_in", "decoder.conv1": "conv1", "decoder.conv2": "conv2",
    "decoder.conv_out": "conv_out", "decoder.norm_out": "norm_out", "prior.gain": "prior",
    "scaler": "scaler", "performer.projection": "projection",
}


def compare_with_golden(path, approx, quiet=False):
    """Prints the largest relative difference of every stage; returns whether all are tiny."""
    import h5py

    file, worst = h5py.File(path), 0.0
    config = file["config"].attrs
    tokens, heads = int(config["T"]), int(config["H"])
    block = SeaAttention(tokens, heads, int(config["d"]), int(config["K"]), int(config["k"]),
                         int(config["m"])).double()
    tensors = dict(block.named_parameters()) | dict(block.named_buffers())

    def tensor(name):
        return torch.tensor(file[name][()])

    def parameter_name(name):
        stem, _, last = name.rpartition(".")
        return GOLDEN_NAMES[name] if name in GOLDEN_NAMES else f"{GOLDEN_NAMES[stem]}.{last}"

    def compare(name, value):
        nonlocal worst
        wanted = tensor(name)[:len(value)] if value.dim() else tensor(name)
        difference = float((value.detach() - wanted).abs().max() / wanted.abs().max())
        worst = max(worst, difference)
        if not quiet:
            print(f"{difference:9.1e}  {name}")

    with torch.no_grad():
        for name in file["weights"]:
            to = tensors[parameter_name(name)]  # the identity's table has a row for each token
            to.copy_(tensor(f"weights/{name}")[:len(to)])
    q, k, v = (tensor(f"inputs/{name}").requires_grad_() for name in "qkv")
    teacher = TeacherMap(tensor("inputs/teacher_q"), tensor("inputs/teacher_k"), block.columns)
    context, scores, qk = block(q, k, v)
    merged = context.transpose(1, 2).flatten(2)
    approx_kl, approx_square = approx(scores, teacher, block.columns)
    prob_kl, prob_square = teacher.distance(qk, block.columns)
    of_context = (merged - tensor("inputs/teacher_context")).square().mean()
    total = (0.1 * approx_kl + approx_square + 0.1 * prob_kl + prob_square + of_context
             + (merged * tensor("inputs/cotangent")).sum())
    total.backward()
    compare("intermediate/teacher_attention", teacher.map)
    compare("intermediate/S", scores)
    compare("output/c_sea", merged)
    for name, value in [("approx_kl", approx_kl), ("approx_mse", approx_square), ("prob_kl", prob_kl),
                       ("prob_mse", prob_square), ("context", of_context), ("total", total)]:
        compare(f"loss/{name}", value)
    for name in file["grad"]:
        compare(f"grad/{name}", {"q": q, "k": k, "v": v}[name].grad if name in "qkv"
                else tensors[parameter_name(name)].grad)
    return worst < 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("golden", help="tests/golden/causal_paper_t12.h5")
    path = parser.parse_args().golden
    good = [compare_with_golden(path, form) for form in (approx_by_maps, approx_by_columns)]
    raise SystemExit(0 if all(good) else f"differs from {path}")


if __name__ == "__main__":
    main()
