#!/usr/bin/env python3
"""SEA students in transformers against `brine`: the same logits, masks and texts.

    pip install torch transformers h5py
    python3 tests/peer/students.py build/release/brine                    # random students of every family
    python3 tests/peer/students.py build/release/brine --student EXPORT   # a real one (with tokenizer.json)
    python3 tests/peer/students.py build/release/brine --golden           # writes tests/golden/students again

A random student is made in Python, saved by save_pretrained() and read by `brine inspect --capture`, which gives
the hidden states after the last norm and what each layer selected. transformers computes the same sequence
alone, in a padded batch, and from a cache. `brine export --format transformers` of the directory must load and
give the same logits again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps" / "python"), str(ROOT / "apps" / "python" / "tests"), str(ROOT / "tests" / "peer")]

from forced_masks import Forced, mask_in  # noqa: E402
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

DECODERS = {"light": LIGHT, "performer": PERFORMER, "paper": PAPER, "learned": LEARNED, "token": TOKEN}
ENCODERS = {"paper": ENCODER, "light": ENCODER_LIGHT, "batch": ENCODER_BATCH}

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


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def captured(brine, directory, ids, work, k=None):
    """What brine computes for one sequence: hidden states [T, C], columns selected, estimates and masks by layer."""
    out = Path(work) / "capture.h5"
    out.unlink(missing_ok=True)
    flags = ["--tokens", ",".join(map(str, ids)), "--threads", 1, "--quiet", *(["--k", k] if k else [])]
    run(brine, "inspect", directory, "--capture", out, *flags)
    with h5py.File(out) as file:
        layers = [file["layers"][name] for name in sorted(file["layers"])]
        selected = [torch.tensor(np.asarray(layer["selected"])).bool() for layer in layers]
        estimates = [torch.tensor(np.asarray(layer["estimate"])[0]) for layer in layers]
        masks = [mask_in(layer, selected[0].shape[1], len(ids)) for layer in layers]
        return torch.tensor(np.asarray(file["hidden"])[0]), selected, estimates, masks


def head(model, hidden):
    """Logits of hidden states after the last norm."""
    if hasattr(model, "cls"):
        return model.cls(hidden) if not hasattr(model.cls, "predictions") else model.cls.predictions(hidden)
    return model.get_output_embeddings()(hidden)


@torch.no_grad()
def alone(model, ids):
    for block in model.sea_blocks():
        block.capture = {}
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    selected = [block.capture["selected"] for block in model.sea_blocks()]
    for block in model.sea_blocks():
        block.capture = None
    return logits, selected


@torch.no_grad()
def in_batch(model, sequences, encoder):
    """Each sequence's logits from one batch: the first one padded on the left, the second inside, then right."""
    longest = max(map(len, sequences)) + 5
    ids = torch.full((len(sequences), longest), 3)
    mask = torch.zeros(len(sequences), longest, dtype=torch.long)
    positions = torch.zeros_like(mask)
    places = []
    for i, sequence in enumerate(sequences):
        start = longest - len(sequence) if i == 0 else 0
        columns = list(range(start, start + len(sequence)))
        if i == 1:
            half = len(sequence) // 2
            columns = [*range(half), *range(half + 4, len(sequence) + 4)]
        ids[i, columns], mask[i, columns] = torch.tensor(sequence), 1
        positions[i, columns] = torch.arange(len(sequence))
        places.append(columns)
    # An encoder counts positions of padding, too, unless they are given.
    more = {"position_ids": positions} if encoder else {}
    logits = model(input_ids=ids, attention_mask=mask, **more).logits
    return [logits[i, columns] for i, columns in enumerate(places)]


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


def compare(model, brine, directory, sequences, work, k=None):
    """Largest differences of logits: alone, batched, cached; and columns that were selected differently.

    Of causal models also with the masks of brine ("forced"), and what both programs chose then.
    """
    encoder = not next(model.sea_blocks()).shape.causal
    batched = in_batch(model, sequences, encoder)
    worst = dict(alone=0.0, batched=0.0)
    other, choices = 0, []
    for ids, of_batch in zip(sequences, batched, strict=True):
        hidden, selected, estimates, masks = captured(brine, directory, ids, work, k)
        with torch.no_grad():
            wanted = head(model, hidden.to(next(model.parameters()).dtype))
        logits, ours = alone(model, ids)
        worst["alone"] = max(worst["alone"], float((logits - wanted).abs().max()))
        worst["batched"] = max(worst["batched"], float((of_batch - wanted).abs().max()))
        if not encoder:
            error = float((from_cache(model, ids) - wanted).abs().max())
            worst["cached"] = max(worst.get("cached", 0.0), error)
            with torch.no_grad(), Forced(model, masks, estimates, [x[0] for x in selected]) as found:
                forced = model(input_ids=torch.tensor([ids])).logits[0]
            worst["forced"] = max(worst.get("forced", 0.0), float((forced - wanted).abs().max()))
            choices.append(found)
        other += sum(int((a != b).sum()) for a, b in zip(ours, selected, strict=True))
    return worst, other, choices


def ties(choices):
    """Prints the masks that differ; true if every one is a tie."""
    rows, other = sum(x.rows for x in choices), sum(x.other for x in choices)
    estimate, margin = (max((getattr(x, name) for x in choices), default=0.0) for name in ("estimate", "margin"))
    print(
        f"  estimates differ by at most {estimate:.1e}; other masks in {other} of {rows} rows, margins to {margin:.1e}"
    )
    for place in [place for x in choices for place in x.places][:10]:
        print(f"    {place}")
    return all(x.only_ties for x in choices)


def report(name, worst, other, failures):
    good = max(worst.values()) <= TOLERANCE and other == 0
    numbers = "  ".join(f"{key} {value:.1e}" for key, value in worst.items())
    print(f"{name:18} {numbers}  columns {other}  {'good' if good else 'BAD'}", flush=True)
    return failures + (not good)


def exported(brine, model, directory, work):
    """The directory that brine exports of one that transformers saved: the same logits, bit for bit."""
    out = Path(work) / "exported"
    run(brine, "export", "--checkpoint", directory, "--out", out, "--format", "transformers", "--quiet")
    ids = torch.tensor(sequences_for([30]))
    again = getattr(
        transformers,
        brine_sea.modeling_brine_sea.STUDENTS[json.loads((out / "config.json").read_text())["architectures"][0]][1],
    ).from_pretrained(out, trust_remote_code=True)
    with torch.no_grad():
        same = torch.equal(again.eval()(input_ids=ids).logits, model(input_ids=ids).logits)
    if not same:
        raise SystemExit(f"{directory}: what brine exports has other logits")


def random_students(brine, lengths, exports):
    failures = 0
    cases = [
        (family, name, settings)
        for family in ("llama", "mistral", "qwen2", "qwen3", "opt", "gpt2")
        for name, settings in DECODERS.items()
    ]
    cases += [("bert", name, settings) for name, settings in ENCODERS.items()]
    for family, name, settings in cases:
        model = make(family, settings)
        with tempfile.TemporaryDirectory() as work:
            directory = Path(work) / "student"
            model.save_pretrained(directory)
            worst, other, choices = compare(model, brine, directory, sequences_for(lengths), work)
            failures = report(f"{family} {name}", worst, other, failures)
            if any(x.other for x in choices):
                failures += not ties(choices)
            if exports:
                exported(brine, model, directory, work)
    return failures


def real_student(brine, directory, lengths, k, text):
    """One student: random ids of its vocabulary, a text, and greedy continuations of two prompts, together."""
    model = brine_sea.load(directory, dtype=torch.float32).eval()
    model.set_sea(k=k)
    vocabulary = model.config.vocab_size
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, padding_side="left")
    texts_of = {"random ids": sequences_for(lengths, vocabulary)}
    if text:
        ids = tokenizer(Path(text).read_text(encoding="utf-8"))["input_ids"]
        texts_of["text"] = [ids[a : a + n] for a, n in zip((0, 500, 900), lengths, strict=True)]
    failures = 0
    for name, sequences in texts_of.items():
        with tempfile.TemporaryDirectory() as work:
            worst, other, choices = compare(model, brine, directory, sequences, work, k)
        # Behind a tie the programs differ by more than rounding; with the same masks they must not.
        numbers = "  ".join(f"{key} {value:.1e}" for key, value in worst.items())
        print(f"{name}: {numbers}; columns selected differently: {other}")
        good = ties(choices)
        allowed = any(x.other for x in choices)
        compared = ("forced",) if allowed else tuple(worst)
        failures += not good or any(worst[key] > TOLERANCE for key in compared)
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
    from safetensors.torch import save_file

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
    parser.add_argument("brine")
    parser.add_argument("--student", help="directory of brine export instead of random students")
    parser.add_argument("--k", type=int, help="kept keys of --student; as trained without it")
    parser.add_argument("--text", help="file for --student, of which pieces are compared, too")
    parser.add_argument("--lengths", type=int, nargs=3, default=[110, 57, 23])
    parser.add_argument("--no-export", action="store_true", help="do not export again (for a program without it)")
    parser.add_argument("--golden", action="store_true", help="write tests/golden/students and compare nothing")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    transformers.utils.logging.disable_progress_bar()
    if options.golden:
        return write_golden()
    if options.student:
        return real_student(options.brine, options.student, options.lengths, options.k, options.text)
    return random_students(options.brine, options.lengths, not options.no_export)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
