"""A tokenizer of Hugging Face's `tokenizers` from what Brine's --tokenizer takes: a directory with tokenizer.json, with
vocab.txt or with vocab.json and merges.txt, or a GGUF file (needs the package gguf)."""
import json
import pathlib

from tokenizers import BertWordPieceTokenizer, Tokenizer, models, pre_tokenizers, processors

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(**changes):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": True, **changes}


def sequence(*steps, key="pretokenizers"):
    return {"type": "Sequence", key: list(steps)}


def added(number, content, **changes):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True, **changes}


PLAIN = byte_level(use_regex=False)
DIGITS = {"type": "Digits", "individual_digits": True}
# Pre-tokenizer, normalizer, ignore_merges by llama.cpp's name of the pre-tokenizer.
PRE = {"gpt-2": (byte_level(), None, False),
       "smollm": (sequence(DIGITS, byte_level()), None, False),
       "llama-bpe": (sequence(split(LLAMA3), PLAIN), None, True),
       "qwen2": (sequence(split(QWEN2), PLAIN), {"type": "NFC"}, False)}


def byte_level_root(vocabulary, merges, pre, special=()):
    """The content of tokenizer.json; merges: pairs; special: (id, content, is special)."""
    step, normalizer, ignore = PRE[pre]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(number, text, special=flag) for number, text, flag in special],
            "normalizer": normalizer, "pre_tokenizer": step, "post_processor": None,
            "decoder": byte_level(),
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": ignore}}


def gguf_root(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields

    def value(name):
        return fields["tokenizer.ggml." + name].contents()
    if value("model") != "gpt2":
        raise SystemExit(f"{path}: a tokenizer of the kind {value('model')}")
    tokens, types = value("tokens"), value("token_type")
    special = [(i, tokens[i], t == 3) for i, t in enumerate(types) if t in (3, 4)]
    return byte_level_root({token: i for i, token in enumerate(tokens)},
                           [merge.split(" ") for merge in value("merges")], value("pre"), special)


def load(path):
    path = pathlib.Path(path)
    if path.is_file():
        return Tokenizer.from_str(json.dumps(gguf_root(path)))
    if (path / "tokenizer.json").exists():
        return Tokenizer.from_file(str(path / "tokenizer.json"))
    if (path / "vocab.txt").exists():
        return BertWordPieceTokenizer(str(path / "vocab.txt"))._tokenizer
    tokenizer = Tokenizer(models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    # The special tokens of OPT or of GPT-2, as transformers adds them.
    opt = tokenizer.token_to_id("</s>") is not None
    tokenizer.add_special_tokens(["<pad>", "</s>"] if opt else ["<|endoftext|>"])
    return tokenizer
