# Makes tiny.safetensors: weights of a two-layer OPT under Hugging Face's names, and for one padded
# batch its logits, hidden states, loss and gradients, computed in f64 by numpy alone. Gradients are
# exact derivatives by complex steps: Im f(x + ih) / h. Run once; the tests read the file.
import numpy as np
from safetensors.numpy import save_file

V, C, L, H, F, P, B, T = 64, 32, 2, 4, 48, 24, 2, 17
LENGTHS = [17, 11]
rng = np.random.default_rng(7)


def weights():
    w = {"model.decoder.embed_tokens.weight": (V, C),
         "model.decoder.embed_positions.weight": (P + 2, C),
         "model.decoder.final_layer_norm.weight": (C,), "model.decoder.final_layer_norm.bias": (C,)}
    for i in range(L):
        at = f"model.decoder.layers.{i}."
        for name in ["q_proj", "k_proj", "v_proj", "out_proj"]:
            w[at + f"self_attn.{name}.weight"], w[at + f"self_attn.{name}.bias"] = (C, C), (C,)
        for name in ["self_attn_layer_norm", "final_layer_norm"]:
            w[at + f"{name}.weight"], w[at + f"{name}.bias"] = (C,), (C,)
        w[at + "fc1.weight"], w[at + "fc1.bias"] = (F, C), (F,)
        w[at + "fc2.weight"], w[at + "fc2.bias"] = (C, F), (C,)
    out = {}
    for name, shape in w.items():
        gain = 1.0 if "norm.weight" in name else 0.0
        out[name] = (gain + 0.2 * rng.standard_normal(shape)).astype(np.float32)
    return out


def norm(x, w, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * w[name + ".weight"] + w[name + ".bias"]


def linear(x, w, name):
    return x @ w[name + ".weight"].T + w[name + ".bias"]


def layer(x, w, i, hidden):
    at = f"model.decoder.layers.{i}."
    y = norm(x, w, at + "self_attn_layer_norm")
    q, k, v = (linear(y, w, at + "self_attn." + name).reshape(B, T, H, C // H).swapaxes(1, 2)
               for name in ("q_proj", "k_proj", "v_proj"))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(C // H)
    e = np.where(hidden, 0, np.exp(scores))
    context = (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(B, T, C)
    x = x + linear(context, w, at + "self_attn.out_proj")
    y = linear(norm(x, w, at + "final_layer_norm"), w, at + "fc1")
    return x + linear(y * (y.real > 0), w, at + "fc2")


def model(w, ids):
    hidden = np.triu(np.ones((T, T), bool), 1)[None, None]
    x = w["model.decoder.embed_tokens.weight"][ids]
    x = x + w["model.decoder.embed_positions.weight"][np.arange(T) + 2]
    states = [x]
    for i in range(L):
        x = layer(x, w, i, hidden)
        states.append(x)
    x = norm(x, w, "model.decoder.final_layer_norm")
    logits = x @ w["model.decoder.embed_tokens.weight"].T
    lse = np.log(np.exp(logits).sum(-1))
    terms = [lse[b, t] - logits[b, t, ids[b, t + 1]]
             for b in range(B) for t in range(LENGTHS[b] - 1)]
    return sum(terms) / len(terms), logits, states, x


w32 = weights()
ids = rng.integers(2, V, (B, T))
w = {n: a.astype(np.complex128) for n, a in w32.items()}
loss, logits, states, last = model(w, ids)
tensors = {"model/" + n: a for n, a in w32.items()}
h = 1e-30
for name, a in w.items():
    g = np.zeros(a.shape, np.float32)
    for i in np.ndindex(a.shape):
        before = a[i]
        a[i] += 1j * h
        g[i] = model(w, ids)[0].imag / h
        a[i] = before
    tensors["gradient/" + name] = g
for i, x in enumerate(states):
    tensors[f"hidden/{i}"] = x.real.astype(np.float32)
tensors["last"] = last.real.astype(np.float32)
tensors["logits"] = logits.real.astype(np.float32)
tensors["loss"] = np.array([loss.real], np.float32)
tensors["ids"] = ids.astype(np.int32)
tensors["lengths"] = np.array(LENGTHS, np.int64)
save_file(tensors, "tiny.safetensors")
