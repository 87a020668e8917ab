#!/usr/bin/env python3
"""transformers loads what `brine export` writes, without a complaint, and computes the same.

Exports every model of tests/golden/models, and one large enough for shards of 1 MiB, in f32, f16
and bf16, loads it with
the class that its config.json names, and compares the logits with those of the original. A warning,
a missing, unexpected or mismatched tensor fails.

  pip install torch transformers && python3 tests/peer/load_export.py build/release/brine
"""
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "models")
MEDIUM = "medium"
TOLERANCE = {"f32": 1e-6, "f16": 5e-3, "bf16": 4e-2}


class Complaints(logging.Handler):
    """Collects what transformers logs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def load(path):
    with open(os.path.join(path, "config.json")) as file:
        name = json.load(file)["architectures"][0]
    model, info = getattr(transformers, name).from_pretrained(
        path, output_loading_info=True, dtype=torch.float32)
    bad = {key: list(value) for key, value in info.items() if value}
    return model.eval(), bad


def make_medium(path):
    torch.manual_seed(1)
    config = transformers.OPTConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=2,
                                    ffn_dim=512, num_attention_heads=4, pad_token_id=1)
    transformers.OPTForCausalLM(config).save_pretrained(path)
    return path


def logits(model):
    ids = (torch.arange(24).reshape(2, 12) * 4 + 3) % model.config.vocab_size
    with torch.no_grad():
        return model(input_ids=ids).logits


def main(brine):
    handler = Complaints()
    transformers.utils.logging.get_logger("transformers").addHandler(handler)
    transformers.utils.logging.disable_progress_bar()
    failures = 0
    workplace = tempfile.TemporaryDirectory()
    for name in sorted(os.listdir(GOLDEN)) + [MEDIUM]:
        source = os.path.join(GOLDEN, name)
        if name == MEDIUM:
            source = make_medium(os.path.join(workplace.name, name))
        if not os.path.isdir(source):
            continue
        original, _ = load(source)
        for dtype, shard in (("f32", 0), ("f16", 0), ("bf16", 0), ("f32", 1)):
            with tempfile.TemporaryDirectory() as folder:
                out = os.path.join(folder, "out")
                subprocess.run([brine, "export", "--checkpoint", source, "--out", out, "--dtype",
                                dtype, "--shard-size", str(shard), "--quiet"], check=True)
                handler.lines.clear()
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    model, bad = load(out)
                complaints = handler.lines + [str(w.message) for w in caught]
                a, b = logits(original), logits(model)
                error = ((a - b).abs().max() / a.abs().max()).item()
                good = not bad and not complaints and error <= TOLERANCE[dtype]
                failures += not good
                print(f"{name:16} {dtype:5} {len([f for f in os.listdir(out) if f.endswith('.safetensors')])} "
                      f"file(s) {type(model).__name__:30} error {error:.1e}  "
                      f"{'good' if good else 'BAD'} {bad or ''} {complaints or ''}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
