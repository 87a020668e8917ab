#!/usr/bin/env python3
"""A SEA student in transformers against `brine`: the same logits and texts.

    pip install torch transformers
    python3 tests/peer/students.py build/release/brine EXPORT TEXT   # a student (with tokenizer.json), a text file
    python3 tests/peer/students.py --golden                          # writes tests/golden/students again

`brine logits` gives the logits of windows of the text. transformers computes the same windows alone, in a padded
batch, and from a cache; both continue two prompts greedily. Students of every family are compared by the C++ tests
with what --golden writes.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps" / "python"), str(ROOT / "apps" / "python" / "tests"), str(ROOT / "tests" / "peer")]

from lm_eval_task import run  # noqa: E402
from students import BLOCKS, LIGHT, PAPER, PERFORMER, SIZES, VOCABULARY, make  # noqa: E402

import brine_sea  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "students"
TOLERANCE = 1e-4
LEARNED = PAPER | {"prior": "learned", "prior_features": 8}
TOKEN = PAPER | {"mu_scope": "token"}
# Encoders: one setting of each kind.
ENCODER = PAPER | {"features": "softmax"}
ENCODER_LIGHT = LIGHT | {"mode": "per-head"}
ENCODER_BATCH = PAPER | {"prior": "performer", "mode": "per-batch", "identity_interpolation": "nearest"}

# What the C++ tests compare with: small, one setting a family.
GOLDEN_CASES = {
    "llama": ("llama", LIGHT, None),
    "llama_blocks": ("llama", BLOCKS, None),
    "mistral": ("mistral", LEARNED, None),
    "qwen2": ("qwen2", PAPER, None),
    "qwen3": ("qwen3", LIGHT | {"gates": "token"}, None),
    "opt": ("opt", LIGHT, None),
    "gpt2": ("gpt2", PERFORMER, None),
    "bert_masked_lm": ("bert", ENCODER, "BertForMaskedLM"),
    "bert_classifier": ("bert", ENCODER_LIGHT, "BertForSequenceClassification"),
}


def logits_of(brine, directory, text, work, length, windows, k=None):
    """What brine computes of the first windows of a text: ids [N, T] and logits [N, T, V]."""
    out = Path(work) / "logits.safetensors"
    flags = ["--sequence-length", length, "--max-windows", windows, "--threads", 1, "--quiet", *(["--k", k] if k else [])]
    run(brine, "logits", "--model", directory, "--data", text, "--out", out, *flags)
    tensors = load_file(out)
    return tensors["tokens"].long(), tensors["logits"]


@torch.no_grad()
def in_batch(model, sequences, encoder):
    """Each sequence's logits from one batch: the first one padded on the left, the second inside, then right."""
    longest = max(map(len, sequences)) + 5
    ids = torch.full((len(sequences), longest), 3)
    mask = torch.zeros(len(sequences), longest, dtype=torch.long)
    positions = torch.zeros_like(mask)
    own_columns = []
    for i, sequence in enumerate(sequences):
        start = longest - len(sequence) if i == 0 else 0
        columns = list(range(start, start + len(sequence)))
        if i == 1:
            half = len(sequence) // 2
            columns = [*range(half), *range(half + 4, len(sequence) + 4)]
        ids[i, columns], mask[i, columns] = torch.tensor(sequence), 1
        positions[i, columns] = torch.arange(len(sequence))
        own_columns.append(columns)
    # An encoder counts positions of padding, too, unless they are given.
    more = {"position_ids": positions} if encoder else {}
    logits = model(input_ids=ids, attention_mask=mask, **more).logits
    return [logits[i, columns] for i, columns in enumerate(own_columns)]


@torch.no_grad()
def from_cache(model, ids):
    ids, parts, cache = torch.tensor([ids]), [], None
    length = ids.shape[1]
    cuts = sorted({0, length // 2, *range(length // 2, length + 1)})
    for a, b in zip(cuts[:-1], cuts[1:], strict=True):
        out = model(input_ids=ids[:, a:b], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits[0])
    return torch.cat(parts)


def sequences_for(lengths, vocabulary=VOCABULARY):
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def compare(model, ids, wanted):
    """Largest differences of logits: alone, batched, cached."""
    encoder = not next(model.sea_blocks()).shape.causal
    worst = dict(alone=0.0, batched=0.0)
    for row, of_batch, logits in zip(ids.tolist(), in_batch(model, ids.tolist(), encoder), wanted, strict=True):
        found = {"alone": model(input_ids=torch.tensor([row])).logits[0], "batched": of_batch}
        if not encoder:
            found["cached"] = from_cache(model, row)
        for name, x in found.items():
            worst[name] = max(worst.get(name, 0.0), float((x - logits).abs().max()))
    return worst


def real_student(brine, directory, text, length, windows, k):
    """Windows of a text, and greedy continuations of two prompts, together."""
    model = brine_sea.load(directory, dtype=torch.float32).eval()
    model.set_sea(k=k)
    with tempfile.TemporaryDirectory() as work:
        worst = compare(model, *logits_of(brine, directory, text, work, length, windows, k))
    failures = int(max(worst.values()) > TOLERANCE)
    print("  ".join(f"{key} {value:.1e}" for key, value in worst.items()), "BAD" if failures else "good")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
    prompts = ["In the beginning", "The history of the city is long, and"]
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    for skip in (1, 3):
        flags = "--tokens 24 --temperature 0 --ignore-eos --json --quiet --threads 1 --cache exact".split()
        flags += ["--query-skip", skip, *(["--k", k] if k else [])]
        texts = json.loads(run(brine, "generate", "--model", directory, *flags, "--prompt", *prompts))
        model.set_sea(query_skip=skip)
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=24, do_sample=False, eos_token_id=None)
        continued = out[:, inputs["input_ids"].shape[1] :].tolist()
        wanted = [sequence["tokens"] for sequence in texts["sequences"]]
        same = "equal" if wanted == continued else "DIFFER"
        print(f"greedy texts, query_skip {skip}, {same}: {tokenizer.batch_decode(out)}")
        failures += wanted != continued
    return failures


def write_golden():
    """Students with their logits of a batch: padding on the left, inside and on the right."""
    for name, (family, settings, architecture) in GOLDEN_CASES.items():
        sizes = dict(vocab_size=30)
        if family == "gpt2":
            sizes |= dict(n_positions=40, n_embd=16)
        else:
            sizes |= dict(max_position_embeddings=40, hidden_size=16)
            sizes |= dict(word_embed_proj_dim=16, ffn_dim=24) if family == "opt" else dict(intermediate_size=24)
        if "head_dim" in SIZES[family]:
            sizes["head_dim"] = 4
        if architecture == "BertForSequenceClassification":
            sizes["num_labels"] = 3
        settings = settings | {"feature_divisor": 1.0}
        model = make(family, settings, architecture, **sizes)
        directory = GOLDEN / name
        model.save_pretrained(directory)
        for file in directory.glob("*.py"):
            file.unlink()
        (directory / "generation_config.json").unlink(missing_ok=True)
        mask = torch.ones(3, 36, dtype=torch.long)
        mask[0, :9], mask[1, 12:20], mask[2, 30:] = 0, 0, 0
        ids = torch.tensor(sequences_for([36, 36, 36], 30))
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits
        save_file(
            {"ids": ids.int(), "mask": mask.to(torch.uint8), "logits": logits.contiguous()},
            directory / "expected.safetensors",
        )
        print(name, sum(file.stat().st_size for file in directory.iterdir()), "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("brine", nargs="?")
    parser.add_argument("student", nargs="?", help="directory of brine export")
    parser.add_argument("text", nargs="?", help="text file")
    parser.add_argument("--k", type=int, help="kept keys; as trained without it")
    parser.add_argument("--length", type=int, default=110)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--golden", action="store_true", help="write tests/golden/students and compare nothing")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    transformers.utils.logging.disable_progress_bar()
    if options.golden:
        return write_golden()
    return real_student(
        options.brine, options.student, options.text, options.length, options.windows, options.k
    )


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
