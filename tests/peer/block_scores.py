"""Scores by which blocks of keys are chosen, next to exact ones: how much attention, and how much of it on a needle,
stays in the blocks.

    tests/peer/block_scores.py MODEL TEXT

MODEL is a Llama of transformers with 8,192 positions, TEXT the haystack. In 12 prompts of 8,192 tokens with one
needle, exact attention runs; the queries of the last 64 tokens and all keys are kept. Blocks of 32 keys, 15 chosen by
a row for the heads of a group by the sum of their probabilities, one sink, one local block; tiles of 32 rows at three
places. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator

import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TOKENS, BLOCK, CHOSEN, ROWS, TILE = 8192, 32, 15, 64, 32
WORDS = [
    "apple",
    "river",
    "stone",
    "garden",
    "window",
    "candle",
    "bridge",
    "forest",
    "mirror",
    "basket",
    "lantern",
    "copper",
    "velvet",
    "harbor",
    "meadow",
]
# q [G, H / G, R, d] / sqrt(d), keys by blocks [G, N, 32, d] -> [G, H / G, R, N]
Score = Callable[[Tensor, Tensor], Tensor]


def of_means(q: Tensor, means: Tensor, log_keys: Tensor) -> Tensor:
    """means [G, N, P, d], log_keys [G, N, P]."""
    return (torch.einsum("ghrd,gbpd->ghrbp", q, means) + log_keys[:, None, None]).logsumexp(-1)


def equal_parts(parts: int) -> Score:
    def score(q: Tensor, keys: Tensor) -> Tensor:
        means = keys.unflatten(2, (parts, -1)).mean(3)
        return of_means(q, means, torch.zeros(means.shape[:3]))

    return score


def clusters(parts: int) -> Score:
    """Around the first key and those farthest from all centres before."""

    def score(q: Tensor, keys: Tensor) -> Tensor:
        nearest = torch.full(keys.shape[:3], math.inf)
        owner = torch.zeros(keys.shape[:3], dtype=torch.long)
        centre = keys[:, :, :1]
        for part in range(parts):
            distance = (keys - centre).square().sum(-1)
            owner = torch.where(distance < nearest, part, owner)
            nearest = torch.minimum(nearest, distance)
            farthest = nearest.argmax(-1)[..., None, None]
            centre = keys.gather(2, farthest.expand(-1, -1, 1, keys.shape[-1]))
        member = F.one_hot(owner, parts).float()
        counts = member.sum(2)
        means = member.transpose(2, 3) @ keys / counts.clamp(min=1)[..., None]
        return of_means(q, means, counts.clamp(min=1e-30).log())

    return score


def variance(share: float) -> Score:
    """The mean key and 1/2 q^2 . variance."""

    def score(q: Tensor, keys: Tensor) -> Tensor:
        spread = torch.einsum("ghrd,gbd->ghrb", q.square(), keys.var(2, unbiased=False))
        return torch.einsum("ghrd,gbd->ghrb", q, keys.mean(2)) + share * 0.5 * spread

    return score


def bounds(share: float) -> Score:
    """The middle of the keys' range in each channel, and a share of the range towards the query."""

    def score(q: Tensor, keys: Tensor) -> Tensor:
        high, low = keys.amax(2), keys.amin(2)
        middle = torch.einsum("ghrd,gbd->ghrb", q, (high + low) / 2)
        return middle + share * torch.einsum("ghrd,gbd->ghrb", q.abs(), (high - low) / 2)

    return score


def outliers(count: int) -> Score:
    """The keys farthest from the mean key by themselves, and the mean of the others."""

    def score(q: Tensor, keys: Tensor) -> Tensor:
        distance = (keys - keys.mean(2, keepdim=True)).square().sum(-1)
        order = distance.argsort(-1, descending=True)[..., None].expand_as(keys)
        far, rest = keys.gather(2, order).split([count, BLOCK - count], 2)
        logs = torch.zeros(*keys.shape[:2], count + 1)
        logs[..., -1] = math.log(BLOCK - count)
        return of_means(q, torch.cat([far, rest.mean(2, keepdim=True)], 2), logs)

    return score


def principal(q: Tensor, keys: Tensor) -> Tensor:
    """The mean key plus and minus the standard deviation in the principal direction."""
    mean = keys.mean(2, keepdim=True)
    _, sizes, directions = torch.linalg.svd(keys - mean, full_matrices=False)
    far = sizes[..., :1, None] / math.sqrt(BLOCK) * directions[..., :1, :]
    return of_means(q, torch.cat([mean + far, mean - far], 2), torch.zeros(*keys.shape[:2], 2))


SCORES: dict[str, Score] = {
    **{f"equal parts, {p}": equal_parts(p) for p in (1, 2, 4, 8, 16)},
    **{f"clusters, {p}": clusters(p) for p in (2, 3, 4, 6, 8)},
    "mean and half of the variance": variance(0.5),
    "bounds by channel, half of the range": bounds(0.5),
    "largest distance, 1": outliers(1),
    "largest distances, 3": outliers(3),
    "principal direction": principal,
    "exact": equal_parts(BLOCK),
}


def prompts(tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> Iterator[tuple[list[int], int, int, int]]:
    """Ids, the needle's place and length, the answer's length; six needles at 10 % of the text, six at 50 %."""

    def ids(part: str) -> list[int]:
        return list(tokenizer(part)["input_ids"])

    random.seed(5)
    for depth in [0.1] * 6 + [0.5] * 6:
        start = random.randrange(0, len(text) - 60000)
        hay = ids(text[start : start + 60000])
        key = "-".join(random.sample(WORDS, 2))
        value = str(random.randrange(1000000, 9999999))
        before = ids(
            "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you "
            "about the number afterwards.\n"
        )
        needle = ids(f" One of the special magic numbers for {key} is: {value}.")
        named = f"the special magic number for {key} mentioned in the provided text"
        after, answer = ids(f"\nWhat is {named}? T{named[1:]} is"), ids(f" {value}")
        room = TOKENS - len(before) - len(needle) - len(after) - len(answer)
        place = int(room * depth)
        yield (
            before + hay[:place] + needle + hay[place:room] + after + answer,
            len(before) + place,
            len(needle),
            len(answer),
        )


def kept(scores: Tensor, row_blocks: Tensor, first: int) -> Tensor:
    """Bits [G, R, N] of the blocks that rows keep; a tile begins at row `first`, before it a part of one."""
    blocks = torch.arange(scores.shape[-1])
    complete = blocks < row_blocks[:, None]
    total = scores.masked_fill(~complete, -math.inf).softmax(-1).sum(1)
    fixed = (blocks < 1) | ((blocks >= row_blocks[:, None] - 1) & (blocks <= row_blocks[:, None]))
    total = total.masked_fill(fixed | ~complete, -1)
    chosen = torch.zeros_like(total, dtype=torch.bool).scatter_(2, total.topk(CHOSEN, -1).indices, True)
    for row in range(1, total.shape[1]):
        if (row - first) % TILE:
            chosen[:, row] |= chosen[:, row - 1]
    return chosen | fixed


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("model")
    given.add_argument("text")
    what = given.parse_args()
    caught: dict[int, tuple[Tensor, Tensor]] = {}

    def attention(module, q, k, v, mask, scaling=None, **_):
        caught[module.layer_idx] = q[0, :, -ROWS:], k[0]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scaling)
        return y.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS["caught"] = attention
    model = transformers.AutoModelForCausalLM.from_pretrained(what.model, dtype=torch.float32).eval()
    model.config._attn_implementation = "caught"
    tokenizer = transformers.AutoTokenizer.from_pretrained(what.model)
    with open(what.text, encoding="utf-8") as f:
        text = f.read()
    sums = {name: torch.zeros(5, dtype=torch.float64) for name in SCORES}
    with torch.no_grad():
        for ids, place, length, answer in prompts(tokenizer, text):
            model(torch.tensor([ids]), logits_to_keep=1)
            for q, k in caught.values():
                add(sums, q, k, place, length, answer)
    print(f"{'score':38s} recall  needle  keys of a row")
    for name, s in sums.items():
        print(f"{name:38s} {s[0] / s[1]:.4f}  {s[2] / s[3]:.4f}  {s[4] / s[1]:.0f}")


def add(sums: dict[str, Tensor], q: Tensor, k: Tensor, place: int, length: int, answer: int) -> None:
    """Adds attention kept and all of it, the needle's kept and all of it, keys: of the rows that predict the answer,
    where a head gives the needle more than a tenth, for the needle; of the last 48 rows else."""
    groups, tokens, d = k.shape
    q = (q.float() / math.sqrt(d)).unflatten(0, (groups, -1))
    keys, rows = k.float(), torch.arange(tokens - ROWS, tokens)
    share = torch.einsum("ghrd,gkd->ghrk", q, keys).masked_fill(torch.arange(tokens) > rows[:, None], -math.inf)
    share = share.softmax(-1)
    on_needle = torch.zeros_like(share)
    on_needle[..., place : place + length] = share[..., place : place + length]
    share, on_needle = (x.unflatten(-1, (-1, BLOCK)).sum(-1) for x in (share, on_needle))
    asking = slice(ROWS - answer - 1, ROWS - 1)
    hot = on_needle[:, :, asking].sum(-1) > 0.1
    by_block = keys.unflatten(1, (-1, BLOCK))
    for name, score in SCORES.items():
        scores = score(q, by_block)
        for first in (0, 11, 21):
            bits = kept(scores, rows // BLOCK, first)
            of_row, needle = share * bits[:, None], (on_needle * bits[:, None])[:, :, asking].sum(-1)
            late = slice(16, ROWS)
            sums[name] += torch.tensor([
                of_row[:, :, late].sum(), share[:, :, late].sum(), needle[hot].sum(),
                on_needle[:, :, asking].sum(-1)[hot].sum(), bits[:, late].sum() * BLOCK * q.shape[1],
            ])  # fmt: skip


if __name__ == "__main__":
    main()
