"""Attention over blocks of keys: the golden files, a definition row by row, and the properties of every setting."""

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("h5py")
pytest.importorskip("transformers")

from rows import DOUBLE, Cache, GoldenFile, Results, in_pieces, inputs_of, widened

from brine_sea import blocks_brine_sea as blocks
from brine_sea.configuration_brine_sea import BlockSettings, Shape

FILES = Path(__file__).parents[3] / "tests" / "golden"
GOLDEN = [*sorted(FILES.glob("blocks_codes_*.h5")), FILES / "blocks_window_t50.h5"]
cases = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)


class Golden(GoldenFile):
    """A golden file, and the block with its scales, in f64 or f32."""

    def __init__(self, path, kind=DOUBLE):
        super().__init__(path, kind)
        names = ("block", "sinks", "local", "tile", "columns", "candidates")
        counts = {name: int(self.config[name]) for name in names}
        own = int(self.config["chosen"]) + counts["sinks"] + counts["local"] + 1
        shape = self.shape(int(self.config["T"]))
        self.block = blocks.BlockAttention(shape, BlockSettings(k=counts["block"] * own, **counts)).to(kind)
        self.block.load_state_dict({"key_scale": self.tensor("weights/key_scale")})
        for x in (self.q, self.k, self.v):
            x.requires_grad_()

    def __call__(self):
        self.block.capture = {}
        return self.block(self.q, self.k, self.v, self.visible)


def pieces_of(made, inputs, visible, ends, cache=None):
    """in_pieces(), and what was captured: bits [B, G, R, N]."""
    found, count = {"candidates": [], "chosen": [], "kept": []}, -(-inputs[1].shape[2] // made.settings.block)

    def keep():
        for name, pieces in found.items():
            bits = made.capture[name]
            pieces.append(torch.nn.functional.pad(bits, (0, count - bits.shape[-1])))
        made.capture = {}

    made.capture = {}
    y = in_pieces(made, inputs, visible, ends, cache, after=keep)
    return y, {name: torch.cat(pieces, 2) for name, pieces in found.items()}


@cases
@pytest.mark.parametrize("kind, tolerance", [(DOUBLE, 1e-12), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_equals_the_golden_file(path, kind, tolerance):
    golden = Golden(path, kind)
    y = golden().transpose(1, 2).flatten(2)
    for name, bits in golden.block.capture.items():
        assert torch.equal(bits, golden.tensor(f"intermediate/{name}").bool()), name
    assert torch.allclose(y, golden.tensor("output/c_sea"), rtol=0, atol=tolerance)
    gradients = torch.autograd.grad((y * golden.tensor("inputs/cotangent")).sum(), [golden.q, golden.k, golden.v])
    for name, gradient in zip("qkv", gradients, strict=True):
        assert torch.allclose(gradient, golden.tensor(f"grad/{name}"), rtol=0, atol=tolerance), name


@cases
@torch.no_grad()
def test_calibrates_as_the_golden_file(path):
    golden = Golden(path)
    golden.block.calibrates = True
    golden()
    if golden.block.settings.chosen:
        wanted = golden.tensor("intermediate/calibrated_key_scale")
        assert torch.allclose(golden.block.key_scale, wanted, rtol=0, atol=1e-12)
        golden.k.mul_(3)
        golden()
        assert torch.allclose(golden.block.key_scale, wanted, rtol=0, atol=1e-12)  # once


@cases
@pytest.mark.parametrize("ends", [range(1, 200), [7, 8, 9, 30, 31, *range(32, 200)], [3, 29, 200]], ids=str)
def test_pieces_equal_the_whole(path, ends):
    golden = Golden(path)
    whole, count = golden(), golden.q.shape[2]
    wanted = golden.block.capture
    ends = [end for end in ends if end < count] + [count]
    y, found = pieces_of(golden.block, (golden.q, golden.k, golden.v), golden.visible, ends)
    assert torch.allclose(y, whole, rtol=0, atol=1e-12)
    if golden.visible is None:  # else each piece has another packed order
        for name, bits in wanted.items():
            assert torch.equal(found[name], bits), name


# ---- random blocks


SETTINGS = {
    "all are candidates": dict(k=16, block=4, tile=2),
    "first pass": dict(k=48, block=8, tile=4, candidates=4, sinks=2, local=2),
    "levels": dict(k=20, block=4, tile=4, columns=3, candidates=3),
    "levels of many blocks": dict(k=10, block=2, tile=2, columns=6, candidates=4, sinks=3, local=0),
    "no fixed": dict(k=24, block=8, tile=8, candidates=3, sinks=0, local=0),
    "no tiles": dict(k=16, block=4, tile=1, columns=5, candidates=3),
    "window": dict(k=16, block=4, tile=2, local=4),
}
names = pytest.mark.parametrize("name", SETTINGS)


def random_block(name="all are candidates", groups=2, causal=True, **changes):
    torch.manual_seed(3)
    shape = Shape(heads=4, groups=groups, head_size=8, max_positions=400, causal=causal, rotary=False)
    made = blocks.BlockAttention(shape, BlockSettings(**(SETTINGS[name] | changes))).to(DOUBLE)
    made.key_scale.copy_(torch.rand(groups, 8) + 0.5)
    return made


def largest(shares, count):
    """The `count` blocks with the largest of {block: share}, of equal ones the later."""
    return {b for _, b in sorted(((x, b) for b, x in shares.items()), reverse=True)[:count]}


def chosen_by_definition(s, q, k, sigma, t):
    """Candidates and chosen blocks of row t (section 8), one key after another: q [n, T, d], k [T, d], sigma [d]."""
    o, d = t // s.block, k.shape[1]

    def is_fixed(b):
        return b < s.sinks or b >= o - s.local

    def summed(scores):  # [n, U] of a dictionary's values
        shares = torch.stack(list(scores.values()), 1).softmax(1).sum(0)
        return dict(zip(scores, shares.tolist(), strict=True))

    def first(spans):
        of = {b: (k[x:y].mean(0), k[x:y].var(0, unbiased=False).sqrt()) for b, (x, y) in spans.items()}
        return summed({b: (q[:, t] @ m + q[:, t].abs() @ z) / math.sqrt(d) for b, (m, z) in of.items()})

    def span(b, level=0):
        return b * s.block << level, (b + 1) * s.block << level

    candidates = free = {b for b in range(o) if not is_fixed(b)}
    if s.chosen == 0:
        return set(), set()
    if len(free) > s.candidates:
        level = next(z for z in range(20) if o >> z <= s.columns)
        pool = set(range(o))
        if level:
            is_open = largest(first({i: span(i, level) for i in range(o >> level)}), s.candidates)
            is_open.add(o >> level)
            pool = {b for b in pool if b >> level in is_open or is_fixed(b)}
        shares = first({b: span(b) for b in sorted(pool)})
        candidates = largest({b: x for b, x in shares.items() if not is_fixed(b)}, s.candidates)
    if len(free) <= s.chosen:
        return candidates, free
    w = q[:, t] * sigma / math.sqrt(d)
    step = w.abs().amax(1, keepdim=True) / 127
    u = (w / step).round()
    scores = {}
    for b in sorted(candidates | {b for b in range(o) if is_fixed(b)}):
        keys = k[slice(*span(b))]
        r = (keys - keys.mean(0)) / sigma
        a = r.abs().amax(1) / 7.5
        z = (r / a[:, None]).floor().clamp(-8, 7)
        of_keys = step * a * (u @ z.T + u.sum(1, keepdim=True) / 2)
        scores[b] = (q[:, t] @ keys.mean(0)) / math.sqrt(d) + of_keys.logsumexp(1)
    return candidates, largest({b: x for b, x in summed(scores).items() if b in candidates}, s.chosen)


def kept_by_definition(made, q, k):
    """Bits [G, T, N] of candidates, of what rows choose and keep: q [H, T, d], k [G, T, d]."""
    s, groups, tokens = made.settings, made.shape.groups, q.shape[1]
    n = len(q) // groups
    candidates, chosen, kept = (torch.zeros(groups, tokens, -(-tokens // s.block), dtype=torch.bool) for _ in range(3))
    for g in range(groups):
        for t in range(tokens):
            found = chosen_by_definition(s, q[g * n : (g + 1) * n], k[g], made.key_scale[g], t)
            for bits, numbers in zip((candidates, chosen), found, strict=True):
                bits[g, t, sorted(numbers)] = True
            o = t // s.block
            kept[g, t] = chosen[g, t // s.tile * s.tile : t + 1].any(0)
            kept[g, t, [b for b in range(o + 1) if b < s.sinks or b >= o - s.local]] = True
    return {"candidates": candidates, "chosen": chosen, "kept": kept}


def dense(made, q, k, v, kept):
    """The output by a T x T mask of the blocks kept [B, G, T, N]."""
    n, tokens = q.shape[1] // k.shape[1], q.shape[2]
    seen = kept.repeat_interleave(made.settings.block, -1)[..., :tokens].repeat_interleave(n, 1).tril()
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf).softmax(-1) @ v


@names
@pytest.mark.parametrize("tokens", [1, 5, 61, 90])
@torch.no_grad()
def test_equals_the_definition(name, tokens):
    made, (q, k, v) = random_block(name), inputs_of(tokens, batch=1)
    made.capture = {}
    y = made(q, k, v)
    wanted = kept_by_definition(made, q[0], k[0])
    for name, bits in wanted.items():
        assert torch.equal(made.capture[name][0], bits), name
    assert torch.allclose(y, dense(made, q, k, v, wanted["kept"][None]), rtol=0, atol=1e-12)


@torch.no_grad()
def test_scores_beyond_the_exponents_of_a_type():
    made, (q, k, v) = random_block("first pass").float(), [x.float() for x in inputs_of(61, batch=1)]
    q *= 40
    made.capture = {}
    made(q, k, v)
    assert torch.equal(made.capture["chosen"][0], kept_by_definition(made, q[0], k[0])["chosen"])


@torch.no_grad()
def test_ties_go_to_the_later_block():
    made = random_block(groups=1, k=20)
    q, k, v = inputs_of(60, groups=1)
    k[:, :, 4:] = 1.0  # so scores are equal
    made.capture = {}
    made(q, k, v)
    # Row 58 has 14 complete blocks; 0 and 13 are fixed.
    assert made.capture["chosen"][0, 0, 58].nonzero().flatten().tolist() == [11, 12]
    values = torch.tensor([[1.0, 2.0, 1.0, 1.0, -1.0], [0.0, -1.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    indices = [sorted(row) for row in blocks.largest_indices(values, 2).tolist()]
    assert indices == [[1, 3], [-1, 0], [3, 4]]


@names
def test_gradients(name):
    made, inputs = random_block(name), [x.requires_grad_() for x in inputs_of(45)]
    made.capture = {}
    y = made(*inputs)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), inputs)
    wanted = torch.autograd.grad((dense(made, *inputs, made.capture["kept"]) * cotangent).sum(), inputs)
    torch.testing.assert_close(gradients, wanted, rtol=0, atol=1e-12)


POSITIONS = [range(53), range(9, 62), [*range(3, 20), *range(24, 60)]]


@names
def test_padding_on_any_side_changes_nothing(name):
    made, inputs = random_block(name), [x.requires_grad_() for x in inputs_of(53, batch=1)]
    plain = made(*inputs)
    cotangent = torch.randn_like(plain)
    wanted = torch.autograd.grad((plain * cotangent).sum(), inputs)
    for positions in POSITIONS:
        wide, visible = widened(inputs, positions)
        y = made(*(x.requires_grad_() for x in wide), visible)
        assert torch.allclose(y[:, :, visible[0]], plain, rtol=0, atol=1e-12)
        assert not y[:, :, ~visible[0]].any()
        gradients = torch.autograd.grad((y[:, :, visible[0]] * cotangent).sum(), wide)
        for a, b in zip(gradients, wanted, strict=True):
            assert torch.allclose(a[:, :, visible[0]], b, rtol=0, atol=1e-12)
            assert not a[:, :, ~visible[0]].any()


@torch.no_grad()
def test_a_sequence_of_padding_gives_zeros():
    made, (q, k, v) = random_block("levels"), inputs_of(40)
    visible = torch.ones(2, 40, dtype=torch.bool)
    visible[1] = False
    y = made(q, k, v, visible)
    assert not y[1].any()
    assert torch.allclose(y[:1], made(q[:1], k[:1], v[:1]), rtol=0, atol=1e-12)


@names
@torch.no_grad()
def test_pieces_with_padding_equal_the_whole(name):
    made, inputs = random_block(name), inputs_of(70)
    visible = torch.ones(2, 70, dtype=torch.bool)
    visible[0, :11], visible[1, 40:43] = False, False
    whole = made(*inputs, visible)
    for ends in ([30, 31, 39, 50, *range(51, 71)], range(1, 71), [20, 69, 70]):
        y = in_pieces(made, inputs, visible, ends)
        assert torch.allclose(y, whole, rtol=0, atol=1e-12)


@names
@torch.no_grad()
def test_pasts_that_are_far_apart_change_nothing(name, monkeypatch):
    monkeypatch.setattr(blocks, "SCORED", 1)
    made, inputs = random_block(name), inputs_of(90)
    visible = torch.ones(2, 90, dtype=torch.bool)
    visible[1, :84] = False
    whole = made(*inputs, visible)
    for b, start in ((0, 0), (1, 84)):
        alone = made(*(x[b : b + 1, :, start:] for x in inputs))
        assert torch.allclose(whole[b : b + 1, :, start:], alone, rtol=0, atol=1e-12)
    y = in_pieces(made, inputs, visible, range(85, 91))
    assert torch.allclose(y, whole, rtol=0, atol=1e-12)


@names
@torch.no_grad()
def test_decoding_goes_on_after_a_cut(name):
    made, inputs = random_block(name), inputs_of(60)
    whole = made(*inputs)
    cache = Cache()
    in_pieces(made, [x[:, :, :50] for x in inputs], None, [40, *range(41, 51)], cache)
    for cut in (1, 6, 13):
        for a in range(50 - cut, 50):
            b = a + 1
            y = made(inputs[0][:, :, a:b], inputs[1][:, :, :b], inputs[2][:, :, :b], None, None, cache)
            assert torch.allclose(y, whole[:, :, a:b], rtol=0, atol=1e-12)


@torch.no_grad()
def test_k_may_change_inside_a_sequence():
    made, inputs = random_block("levels"), inputs_of(40)
    cache, start = Cache(), 0
    for end, k in ((21, 20), (22, 24), (23, 12), (30, 16), *((t, 20) for t in range(31, 41))):
        made.k = k
        y = made(*(x[:, :, :end] if i else x[:, :, start:end] for i, x in enumerate(inputs)), None, None, cache)
        assert torch.isfinite(y).all()
        start = end
    made.k, whole = 20, made(*inputs)
    assert torch.allclose(y, whole[:, :, -1:], rtol=0, atol=1e-12)  # a new tile


@torch.no_grad()
def test_steps_read_copies_and_not_all_keys():
    made, inputs = random_block("first pass", candidates=3, k=64), inputs_of(200)
    cache = Cache()
    in_pieces(made, [x[:, :, :181] for x in inputs], None, [180, 181], cache)
    made.capture = None
    with Results() as results:
        q, k, v = inputs
        made(q[:, :, 181:182], k[:, :, :182], v[:, :, :182], None, None, cache)
    views = {2 * 2 * 182 * 8, 2 * 2 * 181 * 8}  # of keys and values
    codes = 2 * 2 * (182 // 8) * 8 * 8  # a view
    assert max(x.numel() for x in results.shapes if x.numel() not in views) <= codes


@names
@torch.no_grad()
def test_sizes_of_bands_change_nothing(name, monkeypatch):
    made, inputs = random_block(name), inputs_of(90)
    whole = made(*inputs)
    monkeypatch.setattr(blocks, "SCORED", 64)
    monkeypatch.setattr(blocks, "GATHERED", 64)
    assert torch.allclose(made(*inputs), whole, rtol=0, atol=1e-12)


@names
@torch.no_grad()
def test_all_blocks_are_full_attention(name):
    made, (q, k, v) = random_block(name, candidates=100, columns=100), inputs_of(60)
    made.k = 100
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, *(x.repeat_interleave(2, 1) for x in (k, v)), is_causal=True
    )
    assert torch.allclose(made(q, k, v), wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_memory_is_linear(monkeypatch):
    """No tensor of a pass has as many elements as a map of T x T."""
    made = random_block("levels").float()
    q, k, v = (x.float() for x in inputs_of(400, batch=1))
    monkeypatch.setattr(blocks, "SCORED", 1 << 12)
    monkeypatch.setattr(blocks, "GATHERED", 1 << 12)
    with Results() as results:
        made(q, k, v)
    # q, or the keys' indices of all tiles
    kept = 2 * (400 // 4) * 4 * (2 + 4 * 2)
    assert results.largest <= max(400 * 4 * 8, kept)
    assert results.largest < 400 * 400


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(tile=3), "tile 3 must divide block 4, such as 4"),
        (dict(tile=128, block=128, k=400), "tile 128 must divide block 128, such as 64"),
        (dict(causal=False), "blocks is for causal models, this one is an encoder: use sea"),
        (
            dict(k=40, candidates=6),
            "candidates is 6, k = 40 chooses 7 blocks: give at least as many candidates, or a smaller k",
        ),
        (dict(k=577), "k is 577, the model has 400 positions: at most 576"),
        (dict(k=1 << 63), "k is 9223372036854775808, the model has 400 positions"),
        (dict(sinks=-1), "sinks is -1, must be at least 0"),
        (dict(block=0), "block is 0, must be at least 1"),
        (dict(columns=0), "columns is 0, must be at least 1"),
    ],
)
def test_refuses_by_name(changes, message, refused):
    refused(message, random_block, **changes)


def test_refuses_nan(refused):
    made, (q, k, v) = random_block(), inputs_of(60)
    q[0, 0, 50] = float("nan")
    refused("NaN", made, q, k, v)
    q[0, 0, 50], k[0, 0, 9] = 0, float("nan")
    refused("NaN", made, q, k, v)


@torch.no_grad()
def test_a_cache_without_choices_is_refused(refused):
    made, (q, k, v) = random_block(), inputs_of(20)
    refused("of 19 tokens in the cache blocks have seen 0", made, q[:, :, 19:], k, v, None, None, Cache())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_16_bits(kind):
    made = random_block("first pass").float()
    q, k, v = (x.to(kind) for x in inputs_of(60))
    made.capture = {}
    wanted, kept = made(q.float(), k.float(), v.float()), made.capture["kept"]
    made.capture = {}
    y = made(q, k, v)
    assert y.dtype == kind
    assert torch.equal(made.capture["kept"], kept)  # the mask is computed in f32
    assert torch.allclose(y.float(), wanted, rtol=0, atol=0.02)
    y = made.to(kind)(q, k, v)
    assert torch.isfinite(y).all()


@names
@torch.no_grad()
def test_flex_attention_has_the_same_mask(name):
    pytest.importorskip("torch.nn.attention.flex_attention")
    gpu = torch.cuda.is_available()
    if gpu and SETTINGS[name]["block"] < 16:
        pytest.skip("a kernel of a GPU has blocks of at least 16 keys")
    made, inputs = random_block(name), inputs_of(75)
    if gpu:
        made, inputs = made.float().cuda(), [x.float().cuda() for x in inputs]
    wanted = made(*inputs)
    made.backend = "flex"
    assert torch.allclose(made(*inputs), wanted, rtol=0, atol=1e-4 if gpu else 1e-12)
    visible = torch.ones(2, 75, dtype=torch.bool, device=wanted.device)
    visible[0, :11], visible[1, 40:43] = False, False
    y = made(*inputs, visible)
    made.backend = "tiles"
    assert torch.allclose(y, made(*inputs, visible), rtol=0, atol=1e-4 if gpu else 1e-12)
