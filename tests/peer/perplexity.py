"""Perplexity of a Hugging Face decoder as GPTQ's evaluation and transformers' page on perplexity compute it, to be
compared with `brine eval --protocol gptq|sea|stride`:

    python3 tests/peer/perplexity.py MODEL TEXT [--window 2048] [--stride N]
    python3 tests/peer/perplexity.py MODEL --make --tokenizer DIR    # a small random OPT, with OPT's vocab.json

Needs torch, transformers and tokenizers. MODEL is an OPT directory with vocab.json and merges.txt, TEXT a file of
WikiText (or any text by lines)."""

import argparse
import math
import os
import shutil

import tokenizers
import torch
import transformers


def joined(path):
    # Rows as the WikiText reader of `datasets` gives them.
    with open(path, encoding="utf-8", newline="\n") as lines:
        return "\n\n".join(line if line.strip() else "" for line in lines)


def negative_log_likelihoods(model, ids):
    """Of every token of ids [T] but the first."""
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")


def blocks(model, ids, window):
    total, count = 0.0, 0
    for i in range(len(ids) // window):
        nll = negative_log_likelihoods(model, ids[i * window : (i + 1) * window])
        total, count = total + nll.sum().item(), count + len(nll)
    return total / count, count, len(ids) % window


def strided(model, ids, window, stride):
    total, count, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        nll = negative_log_likelihoods(model, ids[begin:end])
        wanted = nll[-(end - before) :] if begin else nll
        total, count, before = total + wanted.sum().item(), count + len(wanted), end
        if end == len(ids):
            break
    return total / count, count, 0


def make(args):
    torch.manual_seed(7)
    config = transformers.OPTConfig(vocab_size=50272, hidden_size=64, num_hidden_layers=2, ffn_dim=128,
                                    num_attention_heads=4, max_position_embeddings=args.positions,
                                    word_embed_proj_dim=64, init_std=0.2)
    transformers.OPTForCausalLM(config).save_pretrained(args.model)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(os.path.join(args.tokenizer, name), args.model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--tokenizer")
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--stride", type=int, default=0)
    args = parser.parse_args()
    if args.make:
        return make(args)
    files = [os.path.join(args.model, name) for name in ("vocab.json", "merges.txt")]
    tokenizer = tokenizers.ByteLevelBPETokenizer(*files)
    model = transformers.OPTForCausalLM.from_pretrained(args.model).eval()
    text = joined(args.text)
    without = torch.tensor(tokenizer.encode(text).ids)
    with_bos = torch.cat([torch.tensor([tokenizer.token_to_id("</s>")]), without])  # as OPT's tokenizer
    stride = args.stride or args.window // 2
    for name, (nll, count, dropped) in {
        "sea": blocks(model, without, args.window),
        "gptq": blocks(model, with_bos, args.window),
        f"stride {stride}": strided(model, with_bos, args.window, stride),
    }.items():
        print(f"{name:12} perplexity {math.exp(nll):.6f}  predicted {count}  dropped {dropped}")


if __name__ == "__main__":
    main()
