#!/usr/bin/env python3
"""The distillation step of `brine bench streamed` in PyTorch, with T x T matrices.

A decoder of 4 layers x 256 with 8 heads and 4,096 words, one window of T tokens, f32, no dropout. The
dense teacher runs beside the student, whose attention is SEA (`sea_block.py`); the losses are approx,
prob, context, kd, kd_task and task with Brine's default weights; forward, backward, clipping and
AdamW. Every combination of the variants is timed in a process of its own; the fastest counts: L_approx
in T x T or in K columns, forms of AdamW, glibc's malloc as it is or made to keep what is freed (fewer
page faults, more memory), and with --compile torch.compile. Memory is the most that the process held
beyond what it held before models and data were made. First sea_block.py compares its losses and
gradients with a golden file of Brine, unless h5py or the file is missing.
"""
import argparse
import inspect
import itertools
import json
import multiprocessing
import os
import resource
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from sea_block import (SeaAttention, TeacherMap, approx_by_columns, approx_by_maps,
                       compare_with_golden)
from timing import median_ms

LAYERS, HIDDEN, HEADS, INNER, WORDS = 4, 256, 8, 1024, 4096
COLUMNS, KEPT, FEATURES = 64, 16, 27
GOLDEN = Path(__file__).parent.parent / "golden/causal_lean_t33.h5"
MALLOC = {"malloc": {}, "memory kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1",
                                        "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}}
APPROX = {"approx in T x T": approx_by_maps, "approx in K columns": approx_by_columns}


class Layer(nn.Module):
    """Pre-LN, ReLU. `attention` None: dense, which keeps its map."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.output = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc1, self.fc2 = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x, columns):
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, HIDDEN // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.attention is None:
            seen = TeacherMap(q, k, columns)
            context = seen.map @ v
        else:
            context, *seen = self.attention(q, k, v)
        context = context.transpose(1, 2).reshape(batch, tokens, HIDDEN)
        x = x + self.output(context)
        return x + self.fc2(F.relu(self.fc1(self.norm2(x)))), context, seen


class Decoder(nn.Module):
    def __init__(self, tokens, sea):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, HIDDEN), nn.Embedding(tokens + 2, HIDDEN)
        nn.init.normal_(self.words.weight, std=0.02)

        def attention():
            return SeaAttention(tokens, HEADS, HIDDEN // HEADS, COLUMNS, KEPT, FEATURES) if sea else None

        self.layers = nn.ModuleList(Layer(attention()) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)

    def embed(self, ids):
        return self.words(ids) + self.positions(torch.arange(2, ids.shape[1] + 2))

    def logits(self, x):
        return F.linear(self.norm(x), self.words.weight)


def losses(student, teacher, ids, approx):
    with torch.no_grad():
        theirs = teacher.embed(ids)
    x, total = student.embed(ids), 0
    for mine, guide in zip(student.layers, teacher.layers):
        columns = mine.attention.columns
        with torch.no_grad():
            theirs, their_context, attention = guide(theirs, columns)
        x, context, (scores, qk) = mine(x, columns)
        for kl, square in (approx(scores, attention, columns), attention.distance(qk, columns)):
            total = total + (0.1 * kl + square) / LAYERS
        total = total + F.mse_loss(context, their_context) / LAYERS
        total = total + 5 * F.mse_loss(x, theirs) / LAYERS
    with torch.no_grad():
        wanted = teacher.logits(theirs)[0].log_softmax(-1)
    logits = student.logits(x)[0]
    kd_task = F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)
    return total + 0.2 * kd_task + 0.1 * F.cross_entropy(logits[:-1], ids[0, 1:])


def adamw_forms():
    known = inspect.signature(torch.optim.AdamW.__init__).parameters
    return {f"AdamW {name}": {name: True} for name in ("foreach", "fused") if name in known}


def resident():
    """Bytes that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def run(threads, tokens, approx, adamw, compiled, seconds, pipe):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    before = resident()
    teacher, student = Decoder(tokens, sea=False).eval(), Decoder(tokens, sea=True)
    student.load_state_dict(teacher.state_dict(), strict=False)
    ids = torch.randint(WORDS, (1, tokens))
    form = torch.compile(losses) if compiled else losses
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.01, **adamw)

    def step():
        optimizer.zero_grad(set_to_none=True)
        form(student, teacher, ids, approx).backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()

    ms = median_ms(step, seconds, warm_up=3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipe.send((ms, peak - before))


def measured(environment, *arguments):
    """In a process of its own, so that its peak is its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run, args=(*arguments, theirs))
    os.environ.update(environment)
    process.start()
    for name in environment:
        del os.environ[name]
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        return None
    finally:
        process.join()


def check_golden(quiet):
    try:
        import h5py  # noqa: F401
    except ImportError:
        return print("not compared with Brine: no h5py", file=sys.stderr)
    for form in APPROX.values():
        if not compare_with_golden(GOLDEN, form, quiet=True):
            raise SystemExit(f"differs from {GOLDEN}")
    if not quiet:
        print(f"equal to {GOLDEN.name}: stages, losses, gradients")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5, help="of each combination")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--compile", action="store_true", help="try torch.compile, too (minutes)")
    parser.add_argument("--form", default="", help="only variants whose name contains this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    check_golden(args.json)
    results = []
    compiled_too = [False, True] if args.compile else [False]
    forms = list(itertools.product(APPROX.items(), adamw_forms().items(), MALLOC.items(), compiled_too))
    for tokens in args.tokens:
        for (name, approx), (adamw, options), (malloc, environment), compiled in forms:
            name = ", ".join([name, adamw, malloc] + ["torch.compile"] * compiled)
            if args.form not in name:
                continue
            found = measured(environment, args.threads, tokens, approx, options, compiled, args.seconds)
            if not found:
                continue
            results.append({"tokens": tokens, "form": name, "ms": found[0], "peak_bytes": found[1]})
            if not args.json:
                print(f"T {tokens:5d} {found[0]:8.1f} ms {found[1] / 2**20:8.0f} MiB  {name}", flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "threads": args.threads, "rows": results}))


if __name__ == "__main__":
    main()
