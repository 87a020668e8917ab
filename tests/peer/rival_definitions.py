"""What the rival methods compute, token by token, in the words of docs/attention-methods.md: `rivals.py --check` compares the forms of
rival_forms.py with it. Slow on purpose; it takes random and trained parameters from the method, nothing else.

definition(name, method, q, k, v, hidden) -> [H, T, d] for q, k, v [H, T, d], hidden [T, H d].
"""
import math

import torch


def softmax_over(q, k, v, keys):
    """Of one query [d] over the listed rows of k and v [T, d]."""
    return torch.softmax(k[keys] @ q / math.sqrt(len(q)), 0) @ v[keys]


def by_lists(q, k, v, keys_of):
    """keys_of(h, t) -> the keys that token t of head h sees."""
    return torch.stack([torch.stack([softmax_over(q[h, t], k[h], v[h], sorted(keys_of(h, t))) for t in range(len(q[h]))])
                        for h in range(len(q))])


def best(scores, count):
    """Places of the largest numbers of a list of tensors."""
    return sorted(range(len(scores)), key=lambda i: -float(scores[i].detach()))[:count]


def linear(feature, q, k, v, eps):
    """feature(x, t) [m] of a row; sums over the tokens so far."""
    heads = []
    for h in range(len(q)):
        values, keys, rows = 0, 0, []
        for t in range(len(q[h])):
            of_k, of_q = feature(k[h, t], t), feature(q[h, t], t)
            values, keys = values + torch.outer(of_k, v[h, t]), keys + of_k
            rows.append(of_q @ values / (of_q @ (keys + eps)))
        heads.append(torch.stack(rows))
    return torch.stack(heads)


def performer(method, q, k, v, _):
    return linear(lambda x, t: torch.relu(x @ method.projection) + 1e-3, q, k, v, 1e-6)


def cosformer(method, q, k, v, _):
    """By its weights: features of products times the cosine of the distance."""
    tokens, rows = q.shape[1], []
    for h in range(len(q)):
        for t in range(tokens):
            distance = t - torch.arange(t + 1, dtype=q.dtype)
            products = (torch.relu(k[h, :t + 1]) + 1e-6) @ (torch.relu(q[h, t]) + 1e-6)
            weights = products * torch.cos(distance * math.pi / (2 * tokens))
            rows.append(weights @ v[h, :t + 1] / weights.sum())
    return torch.stack(rows).view_as(v)


def longformer(method, q, k, v, _):
    window = method.shape.k - 1
    return by_lists(q, k, v, lambda h, t: {0} | set(range(max(0, t - window + 1), t + 1)))


def bigbird(method, q, k, v, _):
    """Window and global blocks as written; the drawn ones are counted: 3 of the others, or all if fewer exist."""
    size = max(1, method.shape.k // 8)

    def keys_of(h, t):
        block = t // size
        fixed = {i for i in (0, 1, block - 2, block - 1, block) if 0 <= i <= block}
        blocks = set(method.blocks[h, block].nonzero().flatten().tolist())
        if not fixed <= blocks or max(blocks) > block or len(blocks - fixed) != min(3, block + 1 - len(fixed)):
            raise SystemExit(f"bigbird: token {t} sees blocks {sorted(blocks)}")
        return [j for i in blocks for j in range(i * size, (i + 1) * size) if j <= t]

    return by_lists(q, k, v, keys_of)


def tdsa(method, q, k, v, _):
    def keys_of(h, t):
        estimate = q[h, t] @ method.signs @ method.query[h]
        return best([estimate @ (k[h, s] @ method.signs @ method.key[h]) for s in range(t + 1)], method.shape.k)

    return by_lists(q, k, v, keys_of)


def indexer(method, q, k, v, hidden):
    heads, size = method.shape.index_heads, method.shape.index_size

    def normed(x):
        return (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)

    keys = [normed(method.key @ x) for x in hidden]
    chosen = []
    for t, x in enumerate(hidden):
        query, weight = (method.query @ x).view(heads, size), method.weight @ x
        scores = [sum(weight[j] * torch.relu(query[j] @ keys[s]) for j in range(heads)) for s in range(t + 1)]
        chosen.append(best(scores, method.shape.k))
    return by_lists(q, k, v, lambda h, t: chosen[t])


def block_topk(method, q, k, v, _):
    size, wanted = method.shape.block, method.shape.k

    def keys_of(h, t):
        block = t // size
        local = list(range(block * size, t + 1))
        # As many blocks as bring the number of keys nearest to k; of two at the same distance the larger.
        count = min(range(block + 1), key=lambda n: (abs(len(local) + n * size - wanted), -n)) if len(local) <= wanted else 0
        blocks = best([q[h, t] @ k[h, i * size:(i + 1) * size].mean(0) for i in range(block)], count)
        return local + [j for i in blocks for j in range(i * size, (i + 1) * size)]

    return by_lists(q, k, v, keys_of)


def reformer(method, q, k, v, _):
    rounds, c, half = method.shape.rounds, method.shape.k, method.half
    tokens = q.shape[1]

    def bucket_of(x, i):
        name = []
        for f in range(method.factors):
            at = (i * method.factors + f) * half
            y = x @ method.rotations[:, at:at + half]
            name.append(best([*y, *(-y)], 1)[0])
        return tuple(name)

    seen = []
    for h in range(len(q)):
        lists = [set() for _ in range(tokens)]
        for i in range(rounds):
            members = {}
            for t in range(tokens):
                bucket = members.setdefault(bucket_of(q[h, t], i), [])
                chunk = len(bucket) // c
                lists[t] |= set(bucket[max(0, chunk - 1) * c:])
                bucket.append(t)
        seen.append([keys or {t} for t, keys in enumerate(lists)])
    length = torch.sqrt((q * q).sum(-1, keepdim=True))
    return by_lists(q, q / length, v, lambda h, t: seen[h][t])


def scatterbrain(method, q, k, v, _):
    return reformer(method.sparse, q, k, v, _) + performer(method.low_rank, q, k, v, _)


def sinkhorn(method, q, k, v, _):
    shape, c = method.shape, method.shape.k
    tokens, n, out = q.shape[1], q.shape[1] // c, []
    for h in range(len(q)):
        scores = {}
        for row in range(n):
            a = q[h, :row * c + 1].mean(0) + method.query_positions[h, row]
            for column in range(row):
                b = k[h, column * c:(column + 1) * c].mean(0) + method.key_positions[h, column]
                scores[row, column] = a @ b / (math.sqrt(shape.size) * shape.temperature)
        weights = {at: torch.exp(x) for at, x in scores.items()}

        def rows_to_one(w):
            return {(row, column): x / sum(w[row, j] for j in range(row)) for (row, column), x in w.items()}

        weights = rows_to_one(weights)
        for _ in range(shape.iterations):
            weights = rows_to_one({(row, column): x / sum(weights[i, column] for i in range(column + 1, row + 1))
                                   for (row, column), x in weights.items()})
        for t in range(tokens):
            chunk = t // c
            keys, values = k[h, chunk * c:t + 1], v[h, chunk * c:t + 1]
            if chunk > 0:
                mixed = [sum(weights[chunk, j] * x[h, j * c:(j + 1) * c] for j in range(chunk)) for x in (k, v)]
                keys, values = torch.cat([mixed[0], keys]), torch.cat([mixed[1], values])
            out.append(softmax_over(q[h, t], keys, values, slice(None)))
    return torch.stack(out).view_as(v)


def synthesizer(method, q, k, v, _):
    rows = []
    for h in range(len(q)):
        for t in range(q.shape[1]):
            hidden = torch.relu(method.first @ q[h, t] + method.first_bias)
            scores = method.table[:t + 1] @ hidden + method.table_bias[:t + 1]
            rows.append(torch.softmax(scores, 0) @ v[h, :t + 1])
    return torch.stack(rows).view_as(v)


def definition(name, method, *inputs):
    return globals()[name.replace("-", "_")](method, *inputs)
