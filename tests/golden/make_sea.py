"""The SEA block in float64, slowly and by the method page: makes the golden files with padding on the
left and inside (docs/method.md; layout in README.md).

    make_sea.py DIRECTORY    writes *_holes_*.h5 there
    make_sea.py --check FILE computes an existing file again and prints the largest differences

Needs numpy, h5py and autograd (pip install numpy h5py autograd). It shares no code with Brine.
"""

import math
import sys
from fractions import Fraction

import autograd
import autograd.numpy as np
import h5py
import numpy
from autograd.extend import defvjp, primitive

PRESETS = {  # (bidirectional, causal)
    "paper": (dict(width_reduction=2, channel_expansion=4, token_stride=2, depth=2, dilation=1,
                   last_kernel=3, decoder_norm=0),
              dict(width_reduction=2, channel_expansion=4, token_stride=1, depth=2, dilation=1,
                   last_kernel=3, decoder_norm=1)),
}


@primitive
def erf(x):
    return numpy.vectorize(math.erf)(x)


defvjp(erf, lambda y, x: lambda g: g * 2 / np.sqrt(np.pi) * np.exp(-x * x))


def begin(c, w, K):
    """The first key of column c in a row that sees w keys."""
    return (2 * c * w + K) // (2 * K)


def keys_of(c, w, K):
    return range(begin(c, w, K), begin(c + 1, w, K))


def column_of(w, K):
    """The column of each of w keys."""
    owner = numpy.zeros(w, int)
    for c in range(K):
        owner[list(keys_of(c, w, K))] = c
    return owner


def layer_norm(x, p, name):
    centered = x - np.mean(x, -1, keepdims=True)
    variance = np.mean(centered * centered, -1, keepdims=True)
    return centered / np.sqrt(variance + 1e-5) * p[name + ".weight"] + p[name + ".bias"]


def softmax(x):
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return e / np.sum(e, -1, keepdims=True)


def plain(x):
    """The numbers of x, held constant."""
    return autograd.tracer.getval(x)


class Block:
    """One case: settings c, parameters p; works on packed sequences [H, L, d]."""

    def __init__(self, c):
        self.c = c
        self.tap = {}
        self.margins = {"relu": [1.0], "top_k": [1.0]}

    def relu(self, x):
        near = numpy.abs(plain(x))
        if near.size:
            self.margins["relu"].append(near.min())
        return np.maximum(x, 0)

    def width(self, t, L):
        return t + 1 if self.c["causal"] else L

    def phi(self, x, R, keys):
        scaled = x * x.shape[-1] ** -0.25
        product = np.dot(scaled, R.T)
        if self.c["features"] == "relu":
            return self.relu(product) + 1e-3
        top = plain(product)
        top = top.max((-2, -1), keepdims=True) if keys else top.max(-1, keepdims=True)
        square = np.sum(scaled * scaled, -1, keepdims=True) / 2
        return (np.exp(product - square - top) + 1e-4) / np.sqrt(R.shape[0])

    def identity(self, L, d, p):
        if self.c["causal"]:
            return p["v_identity.table"][:L]
        at = numpy.zeros(L) if L == 1 else numpy.arange(L) * (d - 1) / (L - 1)
        return numpy.maximum(0, 1 - numpy.abs(at[:, None] - numpy.arange(d)))

    def performer(self, phi_q, phi_k, values):
        rows = []
        eps = 1e-6 if self.c["features"] == "relu" else 0
        for t in range(phi_q.shape[1]):
            w = self.width(t, phi_q.shape[1])
            sums = np.sum(phi_k[:, :w], 1)
            state = np.einsum("hjm,hjd->hmd", phi_k[:, :w], values[:, :w])
            top = np.einsum("hm,hmd->hd", phi_q[:, t], state)
            rows.append(top / np.sum(phi_q[:, t] * (sums + eps), -1, keepdims=True))
        return np.stack(rows, 1)

    def convolution(self, x, weight, bias, stride=1, dilation=1):
        """x [channels, T, columns]; the token axis is padded on the past side when causal."""
        size = weight.shape[2]
        reach = dilation * (size - 1)
        past = reach if self.c["causal"] else reach // 2
        T, columns = x.shape[1], x.shape[2]
        x = np.pad(x, ((0, 0), (past, reach - past), (reach // 2, reach - reach // 2)), "constant")
        rows = (T + stride - 1) // stride
        y = 0
        for a in range(size):
            tokens = numpy.arange(rows) * stride + a * dilation
            for b in range(size):
                part = x[:, tokens][:, :, b * dilation:b * dilation + columns]
                y = y + np.einsum("oi,itc->otc", weight[:, :, a, b], part)
        return y if bias is None else y + bias[:, None, None]

    def decode(self, z, p, T):
        """z [H, L, 2d] -> S [H, L, K]. The image has T rows, those of padding are 0."""
        c, (H, L) = self.c, z.shape[:2]
        cut, grow, stride = c["width_reduction"], c["channel_expansion"], c["token_stride"]
        K, narrow = c["K"], c["K"] // c["width_reduction"]
        x = np.dot(z, p["nu.weight"].T) + p["nu.bias"]
        x = np.transpose(np.reshape(x, (H, L, grow, narrow)), (0, 2, 1, 3))
        x = np.reshape(x, (H * grow, L, narrow))
        if c["decoder_norm"]:
            x = layer_norm(x, p, "decoder.norm_in")
        x = np.pad(x, ((0, 0), (0, T - L), (0, 0)), "constant")
        rows = L
        for i in range(c["depth"]):
            step = stride if i == 0 else 1
            name = "decoder.conv1" if i == 0 else "decoder.conv2"
            x = self.convolution(x, p[name + ".weight"], p[name + ".bias"], step, c["dilation"])
            rows = (rows + step - 1) // step
            x = self.relu(x[:, :rows])
            x = np.pad(x, ((0, 0), (0, (T + stride - 1) // stride - rows), (0, 0)), "constant")
        x = x[:, numpy.arange(T) // stride][:, :, numpy.arange(K) * narrow // K]
        x = np.pad(x[:, :L], ((0, 0), (0, T - L), (0, 0)), "constant")
        x = self.convolution(x, p["decoder.conv_out.weight"], None)[:, :L]
        return layer_norm(x, p, "decoder.norm_out") if c["decoder_norm"] else x

    def with_prior(self, S, phi_q, phi_k, gain):
        L, K = S.shape[1], self.c["K"]
        rows = []
        for t in range(L):
            w = self.width(t, L)
            whole = np.sum(phi_q[:, t] * np.sum(phi_k[:, :w], 1), -1)
            columns = []
            for c in range(K):
                owned = list(keys_of(c, w, K))
                if not owned:
                    columns.append(S[:, t, c])
                    continue
                mass = np.sum(phi_q[:, t] * np.sum(phi_k[:, owned], 1), -1) / whole
                columns.append(S[:, t, c] + gain * np.log(w / len(owned) * mass))
            rows.append(np.stack(columns, -1))
        return np.stack(rows, 1)

    def estimate(self, S):
        L, K = S.shape[1], self.c["K"]
        rows = []
        for t in range(L):
            w = self.width(t, L)
            real = [c for c in range(K) if len(keys_of(c, w, K))]
            share = softmax(S[:, t][:, real])
            spread = numpy.zeros((len(real), K))
            spread[numpy.arange(len(real)), real] = 1
            rows.append(np.dot(share, spread))
        return np.stack(rows, 1)

    def select(self, estimate, T):
        """selected [H, L, K] and n_sel by row (or [H, L]); plain numbers."""
        H, L, K = estimate.shape
        k = self.c["k"]
        per_query = self.c["mode"] == "per-query"
        selected = numpy.zeros((H, L, K), numpy.uint8)
        n_sel = numpy.zeros((H, L) if per_query else L, numpy.int64)
        groups = [[h] for h in range(H)] if per_query else [list(range(H))]
        for t in range(L):
            w = self.width(t, L)
            real = [c for c in range(K) if len(keys_of(c, w, K))]
            for heads in groups:
                budget = round(Fraction(len(heads) * k * len(real), w))  # half to even
                count = min(max(budget, len(heads)), len(heads) * len(real))
                order = sorted(((estimate[h, t, c], (h * T + t) * K + c, h, c)
                                for h in heads for c in real), reverse=True)
                for _, _, h, c in order[:count]:
                    selected[h, t, c] = 1
                if count < len(order):
                    self.margins["top_k"].append(order[count - 1][0] - order[count][0])
                if per_query:
                    n_sel[heads[0], t] = count
                else:
                    n_sel[t] = count
        return selected, n_sel

    def entries(self, selected, t, L):
        """The kept keys of row t for each head, ascending."""
        H, _, K = selected.shape
        k, w = self.c["k"], self.width(t, L)
        kept = []
        for h in range(H):
            keys = []
            for c in range(K):
                owned = list(keys_of(c, w, K))
                if selected[h, t, c] and len(owned) > k:
                    owned = [owned[-1] - i * len(owned) // k for i in range(k)]
                if selected[h, t, c]:
                    keys += owned
            kept.append(sorted(keys))
        return kept

    def attend(self, q, k, v, selected):
        H, L, d = q.shape
        rows, kept_rows, shares = [], [], []
        for t in range(L):
            kept = self.entries(selected, t, L)
            heads = []
            for h in range(H):
                if not kept[h]:
                    heads.append(numpy.zeros(d))
                    continue
                share = softmax(np.dot(k[h, kept[h]], q[h, t]) / np.sqrt(d))
                shares.append(plain(share))
                heads.append(np.dot(share, v[h, kept[h]]))
            rows.append(np.stack(heads, 0))
            kept_rows.append(kept)
        return np.stack(rows, 1), kept_rows, shares

    def average(self, estimate, v):
        H, L, d = v.shape
        if self.c["causal"]:
            return np.cumsum(v, 1) / (numpy.arange(L) + 1.0)[:, None]
        wide = np.mean(estimate, 1)[:, column_of(L, self.c["K"])]  # [H, L]
        wide = wide / np.sum(wide, -1, keepdims=True)
        mean = np.einsum("hj,hjd->hd", wide, v)
        return np.repeat(mean[:, None], L, 1)

    def forward(self, q, k, v, p, R, T):
        """c_sea [L, H d] and S [H, L, K]; everything between goes into a dictionary."""
        H, L, d = q.shape
        phi_q, phi_k = self.phi(q, R, False), self.phi(k, R, True)
        identity = self.identity(L, d, p)
        whole = np.concatenate([np.stack([identity] * H), v], -1)
        context = self.performer(phi_q, phi_k, whole)
        z = np.dot(np.concatenate([context, v], -1), p["mu.linear.weight"].T) + p["mu.linear.bias"]
        z = layer_norm(z, p, "mu.norm")
        z = z * (1 + erf(z / np.sqrt(2.0))) / 2
        S = self.decode(z, p, T)
        if self.c["prior"]:
            S = self.with_prior(S, phi_q, phi_k, p["prior.gain"])
        estimate = self.estimate(S)
        selected, n_sel = self.select(plain(estimate), T)
        attended, kept, shares = self.attend(q, k, v, selected)
        gates = 1 / (1 + np.exp(-(np.dot(z, p["scaler.weight"].T) + p["scaler.bias"])))
        average = self.average(estimate, v)
        prob, mix = gates[..., :1], gates[..., 1:]
        out = mix * prob * attended + (1 - mix) * average
        stages = dict(V_I=identity, C_perf=context, Z=z, S=S, estimate=estimate, n_sel=n_sel,
                      selected=selected, kept=kept, probabilities=shares, s_prob=gates[..., 0],
                      s_mix=gates[..., 1], c_avg=average)
        stages = {name: plain(x) for name, x in stages.items()}
        return np.reshape(np.transpose(out, (1, 0, 2)), (L, H * d)), S, stages

    def distances(self, row_of, teacher):
        """Sums over rows and heads of {KL, MSE}; row_of(t) [H, w] is the student's row."""
        L = teacher.shape[1]
        kl = square = 0
        for t in range(L):
            w = self.width(t, L)
            a, want = row_of(t), teacher[:, t, :w]
            kl = kl + np.sum(want * (np.log(want) - np.log(a)))
            square = square + np.sum((a - want) ** 2) / L
        return kl, square


def dense_attention(block, q, k):
    """[H, L, L]; hidden keys 0."""
    H, L, d = q.shape
    out = numpy.zeros((H, L, L))
    for t in range(L):
        w = block.width(t, L)
        out[:, t, :w] = softmax(numpy.einsum("hd,hjd->hj", q[:, t], k[:, :w]) / numpy.sqrt(d))
    return out


def run(c, inputs, weights):
    """The datasets of a file, by name."""
    block = Block(c)
    B, H, T, d = inputs["q"].shape
    K, valid = c["K"], inputs["valid"] != 0
    visible = [numpy.flatnonzero(valid[b]) for b in range(B)]
    R = weights["performer.projection"]
    trained = {name: x for name, x in weights.items() if name != "performer.projection"}
    rows = sum(len(at) for at in visible)
    saved = {}

    def total(q, k, v, p):
        terms = dict.fromkeys(["approx_kl", "approx_mse", "prob_kl", "prob_mse", "context",
                               "cotangent"], 0)
        stages, outs = [], numpy.zeros((B, T, H * d))
        for b in range(B):
            at = visible[b]
            L = len(at)
            qb, kb, vb = q[b][:, at], k[b][:, at], v[b][:, at]
            out, S, stage = block.forward(qb, kb, vb, p, R, T)
            teacher = dense_attention(block, inputs["teacher_q"][b][:, at],
                                      inputs["teacher_k"][b][:, at])
            stage["teacher"] = teacher

            def wide(t):
                w = block.width(t, L)
                return softmax(S[:, t][:, column_of(w, K)])

            def attention(t):
                w = block.width(t, L)
                return softmax(np.einsum("hd,hjd->hj", qb[:, t], kb[:, :w]) / np.sqrt(d))

            for name, row_of in (("approx", wide), ("prob", attention)):
                kl, square = block.distances(row_of, teacher)
                terms[name + "_kl"] = terms[name + "_kl"] + kl / (rows * H)
                terms[name + "_mse"] = terms[name + "_mse"] + square / (rows * H)
            far = out - inputs["teacher_context"][b][at]
            terms["context"] = terms["context"] + np.sum(far * far) / (rows * H * d)
            terms["cotangent"] = terms["cotangent"] + np.sum(out * inputs["cotangent"][b][at])
            outs[b, at] = plain(out)
            stages.append(stage)
        for name in ("approx", "prob"):
            terms[name] = 0.1 * terms[name + "_kl"] + terms[name + "_mse"]
        terms["total"] = terms["approx"] + terms["prob"] + terms["context"] + terms["cotangent"]
        saved.update(terms={name: float(plain(x)) for name, x in terms.items()}, stages=stages,
                     out=outs)
        return terms["total"]

    start = (inputs["q"], inputs["k"], inputs["v"], trained)
    grads = autograd.grad(total, (0, 1, 2, 3))(*start)
    data = {"output/c_sea": saved["out"]}
    data.update({"loss/" + name: numpy.float64(x) for name, x in saved["terms"].items()})
    data.update({"grad/" + name: g for name, g in zip("qkv", grads)})
    data.update({"grad/" + name: grads[3][name] for name in trained})
    data.update({"intermediate/" + n: x for n, x in gather(c, saved["stages"], B, H, T).items()})
    margins = {name: float(min(near)) for name, near in block.margins.items()}
    return data, margins


def gather(c, stages, B, H, T):
    """The stages of all sequences in the shapes of the file; rows of padding are 0."""
    K = c["K"]
    d = stages[0]["c_avg"].shape[-1]
    out = {
        "V_I": numpy.zeros((B, T, d)),
        "n_sel": numpy.zeros((B, H, T) if c["mode"] == "per-query" else (B, T), numpy.int64),
        "teacher_attention": numpy.zeros((B, H, T, T)),
        "teacher_tau": numpy.zeros((B, H, T, K)),
        "teacher_t_log_t": numpy.zeros((B, H, T)),
        "teacher_t_square": numpy.zeros((B, H, T)),
        "selected": numpy.zeros((B, H, T, K), numpy.uint8),
        "head_offsets": numpy.zeros((B, T, H + 1), numpy.int32),
        "row_pointers": numpy.zeros((B, T + 1), numpy.int64),
    }
    for name in ("C_perf", "Z", "S", "estimate", "s_prob", "s_mix", "c_avg"):
        out[name] = numpy.zeros((B, H, T) + stages[0][name].shape[2:])
    columns, shares = [], []
    for b, stage in enumerate(stages):
        L = stage["Z"].shape[1]
        for name in ("C_perf", "Z", "S", "estimate", "s_prob", "s_mix", "c_avg", "selected"):
            out[name][b][:, :L] = stage[name]
        out["V_I"][b, :L] = stage["V_I"]
        out["n_sel"][b][..., :L] = stage["n_sel"]
        t = stage["teacher"]
        out["teacher_attention"][b][:, :L, :L] = t
        positive = numpy.where(t > 0, t, 1)
        out["teacher_t_log_t"][b][:, :L] = (t * numpy.log(positive)).sum(-1)
        out["teacher_t_square"][b][:, :L] = (t * t).sum(-1)
        for row in range(L):
            w = row + 1 if c["causal"] else L
            for column in range(K):
                owned = list(keys_of(column, w, K))
                out["teacher_tau"][b][:, row, column] = t[:, row, owned].sum(-1)
        for row in range(T):
            out["row_pointers"][b, row] = len(columns)
            for h in range(H):
                if row < L:
                    columns += [h * T + key for key in stage["kept"][row][h]]
                out["head_offsets"][b, row, h + 1] = len(columns) - out["row_pointers"][b, row]
        out["row_pointers"][b, T] = len(columns)
        shares += stage["probabilities"]
    out["columns"] = numpy.array(columns, numpy.int32)
    out["probabilities"] = numpy.concatenate(shares)
    return out


def f32(x):
    """Numbers that float32 holds exactly."""
    return x.astype(numpy.float32).astype(numpy.float64)


def new_case(c, valid, seed):
    rng = numpy.random.default_rng(seed)
    H, d, K, m = c["H"], c["d"], c["K"], c["m"]
    B, T = valid.shape
    c = dict(c, B=B, T=T, lengths=valid.sum(-1), seed=seed)
    grow, narrow = c["channel_expansion"], K // c["width_reduction"]

    def normal(*shape, by=1.0, base=0.0):
        return f32(base + by * rng.normal(size=shape))

    inputs = {name: normal(B, H, T, d) for name in ("q", "k", "v", "teacher_q", "teacher_k")}
    inputs["teacher_context"] = normal(B, T, H * d)
    inputs["cotangent"] = normal(B, T, H * d, by=0.2) * valid[..., None]
    inputs["valid"] = valid.astype(numpy.uint8)
    w = {"performer.projection": normal(m, d)}
    if c["causal"]:
        w["v_identity.table"] = normal(c["max_positions"], d)

    def linear(name, rows, columns):
        w[name + ".weight"] = normal(rows, columns, by=0.3)
        w[name + ".bias"] = normal(rows, by=0.1)

    def norm(name, size):
        w[name + ".weight"] = normal(size, by=0.1, base=1)
        w[name + ".bias"] = normal(size, by=0.1)

    linear("mu.linear", 2 * d, 3 * d)
    norm("mu.norm", 2 * d)
    linear("nu", grow * narrow, 2 * d)
    if c["decoder_norm"]:
        norm("decoder.norm_in", narrow)
        norm("decoder.norm_out", K)
    for name in ("decoder.conv1", "decoder.conv2"):
        w[name + ".weight"] = normal(H * grow, H * grow, 3, 3, by=0.12)
        w[name + ".bias"] = normal(H * grow, by=0.1)
    w["decoder.conv_out.weight"] = normal(H, H * grow, c["last_kernel"], c["last_kernel"], by=0.12)
    linear("scaler", 2, 2 * d)
    if c["prior"]:
        w["prior.gain"] = normal(H, by=0.1, base=1)
    return c, inputs, w


def write(path, c, inputs, weights, data):
    with h5py.File(path, "w", libver="earliest") as f:
        group = f.create_group("config")
        for name, x in c.items():
            if isinstance(x, str):
                group.attrs[name] = numpy.bytes_(x)
            elif isinstance(x, int):
                group.attrs[name] = numpy.int64(x)
            else:
                group.attrs[name] = x
        data = dict(data)
        data.update({"inputs/" + name: x for name, x in inputs.items()})
        data.update({"weights/" + name: x for name, x in weights.items()})
        for name in sorted(data):
            f.create_dataset(name, data=data[name])


def make(directory):
    common = dict(H=2, d=4, K=8, k=3, m=5, preset="paper", mode="causal-per-batch",
                  mu_scope="head", query_skip=1, prior=1, feature_divisor=1.0,
                  layer_norm_eps=1e-5, features="relu")
    holes = {
        "bidirectional_holes_t17": (0, ["00011111011011100", "11010111100001011", "11111111111111111"]),
        "causal_holes_t16": (1, ["0000111011110111", "1011110001101000"]),
    }
    for name, (causal, masks) in holes.items():
        valid = numpy.array([[int(x) for x in mask] for mask in masks])
        c = dict(common, causal=causal, max_positions=valid.shape[1] + 2 if causal else 0,
                 **PRESETS["paper"][causal])
        for seed in range(1000):
            case, inputs, weights = new_case(c, valid, seed)
            data, margins = run(case, inputs, weights)
            if min(margins.values()) > 3e-4:
                break
        case.update(relu_margin=margins["relu"], top_k_margin=margins["top_k"])
        write(f"{directory}/{name}.h5", case, inputs, weights, data)
        print(name, "seed", seed, margins, "total", data["loss/total"])


def check(path):
    with h5py.File(path) as f:
        c = {name: x.decode() if isinstance(x, bytes) else x for name, x in f["config"].attrs.items()}
        c.setdefault("features", "relu" if c["causal"] else "softmax")
        inputs = {name: x[()] for name, x in f["inputs"].items()}
        weights = {name: x[()] for name, x in f["weights"].items()}
        data, margins = run(c, inputs, weights)
        worst = 0
        for name, x in sorted(data.items()):
            want = f[name][()]
            same = x.shape == want.shape
            far = numpy.abs(x - want).max(initial=0) if same else numpy.inf
            worst = max(worst, far / max(1e-30, 1e-12 + 1e-10 * numpy.abs(want).max(initial=0)))
            if not same or far > 1e-12:
                print(f"  {name}: {far:.2e} of {numpy.abs(want).max(initial=0):.2e}")
    print(path, "worst over tolerance", worst, margins)


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        for file in sys.argv[2:]:
            check(file)
    else:
        make(sys.argv[1])
