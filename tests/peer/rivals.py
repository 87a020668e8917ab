#!/usr/bin/env python3
"""The rivals of `brine bench attention` in PyTorch: performer, cosformer, longformer and the others of nn/attention/rivals.

    python3 tests/peer/rivals.py build/release/brine [--methods NAME ...] [--tokens 2048 4096] [--rounds 3]
    python3 tests/peer/rivals.py --check

Causal, one sequence of 12 heads x T x 64, k = 64, f32, default settings, from q, k, v (indexer: and the layer's input) to [T, 768];
forward, and forward with backward to q, k, v and the method's parameters. Brine's bench and PyTorch run in turns, two threads each
unless --threads says otherwise; medians over the rounds. A method has several forms in PyTorch (rival_forms.py), of which the fastest
counts; one that takes over twice as long in the first round, or whose tensors would take more than 6 GB, is left out of the others.
Ratio: PyTorch's time over Brine's. --check compares the forms of a method and their gradients with each other at T = 64 in f64; the exit
status is 1 if one differs.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

os.environ.pop("OPENBLAS_CORETYPE", None)  # a fixed core type halves OpenBLAS, in both programs

import torch

from rival_forms import METHODS, Shape
from timing import median_ms

MOST_BYTES = 6e9
WHATS = ["forward", "forward + backward"]


def inputs_of(shape, tokens):
    """q, k and v as leaves, the layer's input, and a gradient for the result."""
    wide = shape.heads * shape.size
    leaves = [torch.randn(shape.heads, tokens, shape.size, dtype=shape.dtype, requires_grad=True) for _ in range(3)]
    return leaves, torch.randn(tokens, wide, dtype=shape.dtype), torch.randn(tokens, wide, dtype=shape.dtype)


def merged(y):
    return y.transpose(0, 1).flatten(1)


def brine_times(brine, method, tokens, threads):
    """{(what, tokens): milliseconds}, and the CPU's name."""
    report = json.loads(subprocess.run([brine, "bench", "attention", "--json", "--quiet", "--device", "cpu", "--threads", str(threads),
                                        "--methods", method, "--tokens", *map(str, tokens)],
                                       check=True, capture_output=True, text=True).stdout)
    rows = {(row["name"].removeprefix(f"{method}, "), int(row["tokens"])): row["ms"] for row in report["rows"]}
    return rows, report["cpu"]


def torch_times(method, leaves, hidden, dy, names, seconds):
    """{(what, form): milliseconds} of the forms in `names`, or of all that fit; a form whose first run takes over four times as long as
    the fastest has that one run."""
    times = {}
    parameters = method.parameters() if hasattr(method, "parameters") else []
    for name, form in method.forms().items():
        if form.bytes > MOST_BYTES or (names is not None and name not in names):
            continue

        def forward():
            with torch.no_grad():
                merged(form.run(*leaves, hidden))

        def both():
            for leaf in [*leaves, *parameters]:
                leaf.grad = None
            merged(form.run(*leaves, hidden)).backward(dy)

        for what, run in zip(WHATS, [forward, both]):
            start = time.perf_counter()
            run()
            once = (time.perf_counter() - start) * 1e3
            least = min((ms for (of, _), ms in times.items() if of == what), default=once)
            times[what, name] = once if once > 4 * least else median_ms(run, seconds)
    return times


def fast_forms(times):
    """Names of forms that are not over twice as slow as the fastest in one of both."""
    least = {what: min((ms for (of, _), ms in times.items() if of == what), default=0) for what in WHATS}
    return {name for (what, name), ms in times.items() if ms <= 2 * least[what]}


def measure(name, args):
    """Medians over the rounds, {(what, tokens): Brine}, {(what, tokens): {form: PyTorch}}, and the CPU's name."""
    shape = Shape()
    torch.manual_seed(1)
    methods = {tokens: METHODS[name](shape, tokens) for tokens in args.tokens}
    inputs = {tokens: inputs_of(shape, tokens) for tokens in args.tokens}
    ours, theirs, chosen = {}, {}, dict.fromkeys(args.tokens)
    for _ in range(args.rounds):
        rows, cpu = brine_times(args.brine, name, args.tokens, args.threads)
        for at, ms in rows.items():
            ours.setdefault(at, []).append(ms)
        for tokens in args.tokens:
            times = torch_times(methods[tokens], *inputs[tokens], chosen[tokens], args.seconds)
            chosen[tokens] = chosen[tokens] or fast_forms(times)
            for (what, form), ms in times.items():
                theirs.setdefault((what, tokens), {}).setdefault(form, []).append(ms)
    middle = statistics.median
    return ({at: middle(ms) for at, ms in ours.items()},
            {at: {form: middle(ms) for form, ms in forms.items()} for at, forms in theirs.items()}, cpu)


def compare(args):
    lines, slower, cpu = [], [], ""
    for name in args.methods:
        ours, theirs, cpu = measure(name, args)
        for tokens in args.tokens:
            cells = []
            for what in WHATS:
                forms, brine_ms = theirs.get((what, tokens)), ours.get((what, tokens))
                if not forms or brine_ms is None:  # too large for all forms, or for Brine's bench
                    cells += ["-", "-", "-"]
                    continue
                best = min(forms, key=forms.get)
                cells += [f"{brine_ms:.1f}", f"{forms[best]:.1f} ({best})", f"{forms[best] / brine_ms:.2f}"]
                if forms[best] < brine_ms:
                    slower.append(f"{name}, {tokens} tokens, {what}")
                print(f"{name:12} {tokens:6} {what:18} Brine {brine_ms:9.1f} ms;  " +
                      ", ".join(f"{form} {ms:.1f}" for form, ms in sorted(forms.items(), key=lambda x: x[1])), flush=True)
            lines.append(f"| {name} | {tokens:,} | " + " | ".join(cells) + " |")
    print(f"\n{cpu}, {args.threads} threads, PyTorch {torch.__version__}, medians of {args.rounds} rounds\n")
    print("| method | tokens | forward: Brine, ms | PyTorch, ms (form) | ratio | with backward: Brine, ms | PyTorch, ms (form) | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))
    print("\nBrine is slower: " + ("; ".join(slower) if slower else "nowhere"))


def check(names):
    """Whether all forms of a method have the same results and gradients."""
    # Many heads of the indexer, since a score is 0, as others are, where none is positive; few directions, for two rotations of a round.
    common = {"index_heads": 16, "index_size": 8, "rank": 4, "dtype": torch.float64}
    shapes = [Shape(heads=3, size=16, k=16, chunk=8, rows=24, rounds=3, hidden=16, block=4, **common),
              Shape(heads=2, size=16, k=8, chunk=16, rows=64, rounds=2, hidden=16, block=8, **common),
              Shape(heads=2, size=8, k=4, chunk=32, rows=16, rounds=1, hidden=8, block=2, iterations=3, directions=4, **common)]
    good = True
    for name in names:
        worst = {}
        for seed, shape in enumerate(shapes):
            torch.manual_seed(seed)
            method = METHODS[name](shape, 64)
            leaves, hidden, dy = inputs_of(shape, 64)
            leaves += method.parameters() if hasattr(method, "parameters") else []

            def results(run):
                y = merged(run(*leaves[:3], hidden))
                grads = torch.autograd.grad(y, leaves, dy, allow_unused=True)
                return [y.detach(), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads))]

            forms = method.forms()
            wanted = results(next(iter(forms.values())).run)
            for form, made in list(forms.items())[1:]:
                for result, expected in zip(results(made.run), wanted):
                    difference = float((result - expected).abs().max() / expected.abs().max().clamp(min=1e-3))
                    worst[form] = max(worst.get(form, 0.0), difference if difference == difference else float("inf"))
        for form, difference in worst.items():
            print(f"{'ok' if difference < 1e-9 else 'DIFFERS':8} {difference:8.1e}  {name}: {form}", flush=True)
            good &= difference < 1e-9
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("brine", nargs="?", help="the program")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of every form and round")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.check:
        raise SystemExit(0 if check(args.methods) else 1)
    if args.brine is None:
        parser.error("give the brine program, or --check")
    if any(tokens % 128 for tokens in args.tokens):
        parser.error("--tokens: multiples of 128")
    compare(args)


if __name__ == "__main__":
    main()
