#!/usr/bin/env python3
"""The distillation step of `brine bench train` in PyTorch, with T x T matrices.

A decoder of 4 layers x 256 with 8 heads and 4,096 words, windows of T tokens, no dropout, f32 or, with
--compute bf16, under autocast. The dense teacher runs next to the student, whose attention is SEA
(`sea_block.py`); the losses are approx, prob, context, kd, kd_task and task with Brine's default
weights; forward, backward, clipping and AdamW. Every
combination of the variants is timed in a separate process; the fastest counts: L_approx in T x T or
in K columns, forms of AdamW, on the CPU glibc's malloc as it is or made to keep what is freed (fewer
page faults, more memory), and with --compile torch.compile. Memory is, on the CPU, the peak of the
process less what it held before models and data were made; on a GPU, the peak of PyTorch's
tensors. First sea_block.py compares its losses and gradients with a golden file of Brine, unless
h5py or the file is missing.
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
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from sea_block import (SeaAttention, TeacherMap, approx_by_columns, approx_by_maps,
                       compare_with_golden)
from timing import median_ms



class Shape(NamedTuple):
    layers: int
    hidden: int
    heads: int
    inner: int
    words: int
    columns: int
    kept: int
    features: int


SMALL = Shape(4, 256, 8, 1024, 4096, 64, 16, 27)
GOLDEN = Path(__file__).parent.parent / "golden/causal_paper_t12.h5"
MALLOC = {"malloc": {}, "memory kept": {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1",
                                        "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}}
APPROX = {"approx in T x T": approx_by_maps, "approx in K columns": approx_by_columns}


class Layer(nn.Module):
    """Pre-LN, ReLU. `attention` None: dense, which keeps its map."""

    def __init__(self, shape, attention):
        super().__init__()
        self.heads, self.attention = shape.heads, attention
        hidden, inner = shape.hidden, shape.inner
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x, columns):
        batch, tokens, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.attention is None:
            seen = TeacherMap(q, k, columns)
            context = seen.map @ v
        else:
            context, *seen = self.attention(q, k, v)
        context = context.transpose(1, 2).reshape(batch, tokens, hidden)
        x = x + self.output(context)
        return x + self.fc2(F.relu(self.fc1(self.norm2(x)))), context, seen


class Decoder(nn.Module):
    def __init__(self, shape, tokens, sea):
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.hidden)
        self.positions = nn.Embedding(tokens + 2, shape.hidden)
        nn.init.normal_(self.words.weight, std=0.02)

        def attention():
            return SeaAttention(tokens, shape.heads, shape.hidden // shape.heads, shape.columns,
                                shape.kept, shape.features) if sea else None

        self.layers = nn.ModuleList(Layer(shape, attention()) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)

    def embed(self, ids):
        return self.words(ids) + self.positions(torch.arange(2, ids.shape[1] + 2, device=ids.device))

    def logits(self, x):
        return F.linear(self.norm(x), self.words.weight)


def losses(student, teacher, ids, approx):
    with torch.no_grad():
        theirs = teacher.embed(ids)
    x, total, layers = student.embed(ids), 0, len(student.layers)
    for layer, guide in zip(student.layers, teacher.layers):
        columns = layer.attention.columns
        with torch.no_grad():
            theirs, their_context, attention = guide(theirs, columns)
        x, context, (scores, qk) = layer(x, columns)
        for kl, square in (approx(scores, attention, columns), attention.distance(qk, columns)):
            total = total + (0.1 * kl + square) / layers
        total = total + F.mse_loss(context, their_context) / layers
        total = total + 5 * F.mse_loss(x, theirs) / layers
    with torch.no_grad():
        wanted = teacher.logits(theirs).flatten(0, 1).log_softmax(-1)
    logits = student.logits(x)
    kd_task = F.kl_div(logits.flatten(0, 1).log_softmax(-1), wanted, reduction="batchmean", log_target=True)
    task = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return total + 0.2 * kd_task + 0.1 * task


def adamw_forms():
    known = inspect.signature(torch.optim.AdamW.__init__).parameters
    return {f"AdamW {name}": {name: True} for name in ("foreach", "fused") if name in known}


def resident():
    """Bytes in use by this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def run(args, tokens, approx, adamw, compiled, pipe):
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = args.compute == "tf32"
    on_gpu, before, shape = args.device != "cpu", resident(), SMALL
    teacher, student = Decoder(shape, tokens, sea=False).eval(), Decoder(shape, tokens, sea=True)
    student.load_state_dict(teacher.state_dict(), strict=False)
    ids = torch.randint(shape.words, (args.batch, tokens))
    form = torch.compile(losses) if compiled else losses
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.01, **adamw)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=args.compute == "bf16"):
            loss = form(student, teacher, ids, approx)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()

    ms = median_ms(step, args.seconds, warm_up=3)
    peak = (torch.cuda.max_memory_allocated() if on_gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
    pipe.send((ms, peak))


def measured(environment, *arguments):
    """In a separate process, so that the peak is that of one variant."""
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
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--batch", type=int, default=1, help="windows of a step")
    parser.add_argument("--compute", choices=["f32", "tf32", "bf16"], default="f32")
    parser.add_argument("--seconds", type=float, default=5, help="of each combination")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--compile", action="store_true", help="try torch.compile, too (minutes)")
    parser.add_argument("--form", default="", help="only variants whose name contains this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device")
    check_golden(args.json)
    results, malloc_forms = [], MALLOC if args.device == "cpu" else {"": {}}
    compiled_too = [False, True] if args.compile else [False]
    forms = list(itertools.product(APPROX.items(), adamw_forms().items(), malloc_forms.items(),
                                   compiled_too))
    for tokens in args.tokens:
        for (name, approx), (adamw, options), (malloc, environment), compiled in forms:
            name = ", ".join(filter(None, [name, adamw, malloc, "torch.compile" * compiled]))
            if args.form not in name:
                continue
            found = measured(environment, args, tokens, approx, options, compiled)
            if not found:
                continue
            results.append({"tokens": tokens, "form": name, "ms": found[0], "peak_bytes": found[1]})
            if not args.json:
                print(f"T {tokens:5d} {found[0]:8.1f} ms {found[1] / 2**20:8.0f} MiB  {name}", flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": args.device, "threads": args.threads,
                          "compute": args.compute, "rows": results}))


if __name__ == "__main__":
    main()
