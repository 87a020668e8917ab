# Makes the model directories and the numbers beside them: randomly initialised models of Hugging
# Face's transformers (PyTorch, eager attention, f64), saved as transformers saves them, and for one
# padded batch of text the hidden states, attention maps, logits, loss and gradients. Run once:
#   pip install torch transformers safetensors numpy && python3 make.py
# wide.safetensors holds no weights: they follow from wide_weight(), so that a layer of OPT-1.3B's
# real width fits; of its gradients it holds sums and beginnings.
import os
import shutil

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification, OPTConfig,
                          OPTForCausalLM)

VOCAB, PAD, FIRST, LAST, MASK = 100, 1, 2, 3, 0
TEXT = ["In the beginning", "God created the", "heaven and the", "earth. And the"]
SECOND = ["was upon the", "face of", "the deep", "And God said"]


# OPT casts scores to f32 for its softmax. There the f64 mask of a row of padding is -inf throughout,
# and its NaN reaches every gradient; in f64 the row is harmless.
_softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim=-1, dtype=None: _softmax(x, dim=dim)


def tokens(text):
    return [ord(c) - 28 for c in text]  # printable characters become 4..98


def batch(rows, T, left_pad=True):
    """Rows of ids: full, padded on the left, on the right, and inside."""
    ids = torch.full((len(rows), T), PAD)
    mask = torch.zeros(len(rows), T, dtype=torch.int64)
    for b, row in enumerate(rows):
        if b == 0:
            positions = list(range(T))
        elif b == 1 and left_pad:
            positions = list(range(4, T))
        elif b < 3:
            positions = list(range(T - 5))
        else:
            positions = [t for t in range(T) if t not in (3, 8, 9)]
        row = (row * 3)[: len(positions)]
        for t, token in zip(positions, row):
            ids[b, t], mask[b, t] = token, 1
    return ids, mask


def perturb(model, seed):
    """Random weights of a useful size; norms and biases too, so that none goes untested."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = 0.25 * torch.randn(p.shape, generator=g)
            p.copy_(noise + (1 if "norm" in name.lower() and name.endswith("weight") else 0))


def next_token_loss(logits, ids, mask):
    """The mean over tokens that have a next one in their row, padding left out."""
    terms = []
    for b in range(ids.shape[0]):
        positions = mask[b].nonzero()[:, 0]
        lp = torch.log_softmax(logits[b, positions[:-1]], -1)
        terms.append(-lp.gather(1, ids[b, positions[1:]][:, None])[:, 0])
    return torch.cat(terms).mean()


def i32(x):
    return x.to(torch.int32).contiguous()


def expect(model, call, loss_of, out):
    model = model.double().eval()
    model.zero_grad()
    y = model(**call, output_hidden_states=True, output_attentions=True)
    loss = loss_of(y.logits)
    loss.backward()
    for i, h in enumerate(y.hidden_states):
        out[f"hidden/{i}"] = h
    for i, a in enumerate(y.attentions):
        out[f"attention/{i}"] = a
    out["logits"], out["loss"] = y.logits, loss[None]
    out["ids"], out["mask"] = i32(call["input_ids"]), call["attention_mask"].to(torch.uint8)
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert torch.isfinite(p.grad).all(), name
            out["gradient/" + name] = p.grad


def write(name, out):
    save_file({n: (x.detach().float() if x.is_floating_point() else x.detach()).contiguous()
               for n, x in out.items()}, name)


def make_opt(name, seed, shard=None, **extra):
    sizes = dict(hidden_size=32, num_hidden_layers=2, ffn_dim=48, num_attention_heads=4) | extra
    config = OPTConfig(vocab_size=VOCAB, max_position_embeddings=24, dropout=0.0,
                       attn_implementation="eager", bos_token_id=2, eos_token_id=2,
                       pad_token_id=PAD, **sizes)
    model = OPTForCausalLM(config)
    perturb(model, seed)
    shutil.rmtree(name, ignore_errors=True)
    model.save_pretrained(name, **({"max_shard_size": shard} if shard else {}))
    ids, mask = batch([[FIRST] + tokens(t) for t in TEXT], 16)
    out = {}
    expect(model, {"input_ids": ids, "attention_mask": mask},
           lambda logits: next_token_loss(logits, ids, mask), out)
    write(name + "/expected.safetensors", out)


def make_bert(name, kind, seed, **extra):
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=4, intermediate_size=48, max_position_embeddings=24,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                        attn_implementation="eager", pad_token_id=PAD, **extra)
    model = kind(config)
    perturb(model, seed)
    shutil.rmtree(name, ignore_errors=True)
    model.save_pretrained(name)
    classifies = kind is BertForSequenceClassification
    rows = [[FIRST] + tokens(a) + [LAST] + tokens(b) + [LAST] for a, b in zip(TEXT, SECOND)]
    # transformers pools the first position even when it is padding, which means nothing.
    ids, mask = batch(rows, 18, left_pad=not classifies)
    types = ((torch.cumsum(ids == LAST, 1) > 0) & (ids != LAST)).long() * mask
    call = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    out = {"types": i32(types)}
    if classifies:
        labels = torch.tensor([2, 0, 1, 2])
        out["labels"] = i32(labels)
        loss_of = lambda logits: torch.nn.functional.cross_entropy(logits, labels)
    else:
        labels = torch.full(ids.shape, -1)
        for b, t in [(0, 2), (0, 11), (1, 5), (1, 9), (2, 0), (3, 10)]:
            labels[b, t] = ids[b, t]
            ids[b, t] = MASK
        out["labels"] = i32(labels)
        loss_of = lambda logits: torch.nn.functional.cross_entropy(
            logits.view(-1, VOCAB), labels.view(-1), ignore_index=-1)
    expect(model, call, loss_of, out)
    write(name + "/expected.safetensors", out)


def hashed(n, seed):
    """Numbers in [-1, 1) that any language makes alike: a 32-bit hash of index and seed."""
    with np.errstate(over="ignore"):
        x = np.arange(n, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed) * np.uint32(97)
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x7FEB352D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x846CA68B)
        x ^= x >> np.uint32(16)
    return (x >> np.uint32(8)).astype(np.float64) / 2**23 - 1


def wide_weight(name, shape, seed):
    """f32; norms around 1, matrices scaled by their width."""
    noise = hashed(int(np.prod(shape)), seed).reshape(shape)
    if len(shape) == 1:
        return (0.25 * noise + ("norm.weight" in name)).astype(np.float32)
    return (noise * (1.5 / np.sqrt(shape[1]))).astype(np.float32)


def make_wide():
    config = OPTConfig(vocab_size=VOCAB, hidden_size=2048, num_hidden_layers=1, ffn_dim=8192,
                       num_attention_heads=32, max_position_embeddings=24, dropout=0.0,
                       attn_implementation="eager", bos_token_id=2, eos_token_id=2,
                       pad_token_id=PAD)
    model = OPTForCausalLM(config)
    named = sorted(model.named_parameters())
    with torch.no_grad():
        for seed, (name, p) in enumerate(named):
            p.copy_(torch.from_numpy(wide_weight(name, tuple(p.shape), seed)))
    ids, mask = batch([[FIRST] + tokens(t) for t in TEXT[:2]], 8)
    out = {}
    expect(model, {"input_ids": ids, "attention_mask": mask},
           lambda logits: next_token_loss(logits, ids, mask), out)
    small = {}
    for name, x in out.items():
        if name.startswith("hidden/"):
            small[name] = x[..., ::32]
        elif name.startswith("gradient/"):
            g = x.detach().numpy().reshape(-1)
            pattern = hashed(g.size, 1000)
            small["sums/" + name[9:]] = torch.tensor([g.sum(), np.abs(g).sum(), g @ pattern])
            small[name] = x.reshape(-1)[:24]
        else:
            small[name] = x
    write("wide.safetensors", small)


os.chdir(os.path.dirname(os.path.abspath(__file__)))
torch.manual_seed(0)
make_opt("opt", 1)
make_opt("opt_350m", 2, shard="30KB", do_layer_norm_before=False, word_embed_proj_dim=16)
make_opt("opt_untied", 3, tie_word_embeddings=False, activation_function="gelu", hidden_size=16,
         word_embed_proj_dim=16, num_hidden_layers=1)
make_bert("bert_classifier", BertForSequenceClassification, 4, num_labels=3)
make_bert("bert_masked_lm", BertForMaskedLM, 5)
make_wide()
