#!/usr/bin/env python3
"""Trains a model through its blocks: by a loop of one's own, by Trainer, or by accelerate.

    train_attached.py loop --text TEXT                                 # also: trainer, accelerate; --bf16
    torchrun --nproc-per-node 2 train_attached.py loop --text TEXT     # DistributedDataParallel

A small random model that reads bytes, unless --model names a model of transformers and its tokenizer.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

import torch
import transformers

import brine_sea

SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=259)
SETTINGS = dict(method="blocks", k=56, block=8, tile=8, candidates=12)
RATE = 3e-3


def by_loop(model, rows, bf16):
    """Blocks have no parameters: the model's optimizer and DistributedDataParallel see all there is."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        torch.distributed.init_process_group("gloo")
        rows = rows[torch.distributed.get_rank() :: torch.distributed.get_world_size()]
    trained = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.AdamW(trained.parameters(), RATE)
    for batch in rows.split(4):
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = trained(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if several:
        torch.distributed.destroy_process_group()


def by_trainer(model, rows, bf16):
    with tempfile.TemporaryDirectory() as out:
        options = dict(output_dir=out, learning_rate=RATE, num_train_epochs=1, per_device_train_batch_size=4)
        options |= dict(bf16=bf16, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
        data = [dict(input_ids=row, labels=row) for row in rows]
        transformers.Trainer(model, transformers.TrainingArguments(**options), train_dataset=data).train()


def by_accelerate(model, rows, bf16):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16" if bf16 else "no")
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    model, optimizer, batches = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(rows, 4))
    for batch in batches:
        accelerator.backward(model(input_ids=batch, labels=batch).loss)
        optimizer.step()
        optimizer.zero_grad()


WAYS = dict(loop=by_loop, trainer=by_trainer, accelerate=by_accelerate)
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("way", choices=WAYS)
parser.add_argument("--text", required=True)
parser.add_argument("--model")
parser.add_argument("--bf16", action="store_true")
given = parser.parse_args()
torch.manual_seed(0)
text, length, settings = Path(given.text).read_text(errors="ignore")[:60000], 192, SETTINGS
if given.model:
    ids = transformers.AutoTokenizer.from_pretrained(given.model)(text)["input_ids"]
    model = transformers.AutoModelForCausalLM.from_pretrained(given.model)
else:
    ids = [3 + byte for byte in text.encode()]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, max_position_embeddings=256))
rows = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
brine_sea.attach(model, settings)


@torch.no_grad()
def loss_of(rows):
    return float(model.eval()(input_ids=rows, labels=rows).loss)


before = loss_of(rows[-4:])  # the first call calibrates key_scale
WAYS[given.way](model.train(), rows[:-4], given.bf16)
if int(os.environ.get("RANK", "0")) == 0:
    print(f"loss {before:.3f} before, {loss_of(rows[-4:]):.3f} after, layers with blocks {brine_sea.layers(model)}")
