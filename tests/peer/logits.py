#!/usr/bin/env python3
"""transformers computes the logits that `brine logits` writes.

Small random models of Llama, OPT and BERT (masked tokens, and a classifier of pairs) with a tokenizer made for them: the ids of a
prompt, its logits in both formats, windows of a text, lines of a classifier. A difference of more than 1e-5 of the largest logit fails.

  pip install torch transformers && python3 tests/peer/logits.py build/release/brine
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy
import tokenizers
import torch
import transformers
from safetensors.numpy import load_file

PROMPT = "the king went up from his place"
TEXT = "".join(f"line {i}: the king said unto his people, and number {i * i} went up from the place of stone.\n" for i in range(60))
LINES = "the king went up\nwater of the city\tand his people said so\nstone\n"
SIZES = {"vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}


def save_tokenizer(place, encoder):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    ends = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"} if encoder else {"single": "[CLS] $A"}
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(**ends, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "[CLS]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(place)
    return fast


def models():
    torch.manual_seed(1)
    t = transformers
    yield t.LlamaForCausalLM(t.LlamaConfig(**SIZES, intermediate_size=96, num_key_value_heads=2, initializer_range=0.1)), False
    yield t.OPTForCausalLM(t.OPTConfig(**SIZES, ffn_dim=96, word_embed_proj_dim=64, init_std=0.1)), False
    bert = t.BertConfig(**SIZES, intermediate_size=96, initializer_range=0.1)
    yield t.BertForMaskedLM(bert), True
    yield t.BertForSequenceClassification(t.BertConfig(**SIZES, intermediate_size=96, initializer_range=0.1, num_labels=3)), True


def error(ours, theirs):
    theirs = theirs.detach().numpy()
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, wanted {theirs.shape}"
    return float(abs(ours - theirs).max() / abs(theirs).max())


@torch.no_grad()
def differences(brine, model, tokenizer, place):
    def logits(out, *flags):
        subprocess.run([brine, "logits", "--quiet", "--model", str(place), "--out", str(out), *flags], check=True, stdout=subprocess.DEVNULL)
        return out

    inputs = tokenizer(PROMPT, return_tensors="pt")
    want = model(**inputs).logits[0]
    yield "prompt, .npy", error(numpy.load(logits(place / "a.npy", "--prompt", PROMPT)), want)
    both = load_file(logits(place / "a.safetensors", "--prompt", PROMPT))
    yield "prompt, .safetensors", error(both["logits"], want)
    yield "ids", 0.0 if both["tokens"].tolist() == inputs["input_ids"][0].tolist() else "are others"
    data = place / "data.txt"
    classifies = model.config.architectures[0].endswith("SequenceClassification")
    data.write_text(LINES if classifies else TEXT)
    file = load_file(logits(place / "b.safetensors", "--data", str(data), *([] if classifies else ["--window", "48"])))
    if not classifies:
        yield "windows", error(file["logits"], model(torch.from_numpy(file["tokens"]).long()).logits)
        return
    ids, types = torch.from_numpy(file["tokens"]).long(), torch.from_numpy(file["type_ids"]).long()
    mask = (ids >= 0).long()
    yield "lines", error(file["logits"], model(ids.clamp(min=0), attention_mask=mask, token_type_ids=types.clamp(min=0)).logits)


def main(brine):
    transformers.utils.logging.disable_progress_bar()
    failures = 0
    for model, encoder in models():
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            model.eval().save_pretrained(place)
            for what, found in differences(brine, model, save_tokenizer(place, encoder), place):
                good = isinstance(found, float) and found <= 1e-5
                failures += not good
                print(f"{type(model).__name__:30} {what:21} {found if isinstance(found, str) else f'{found:.1e}'}  {'good' if good else 'BAD'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
