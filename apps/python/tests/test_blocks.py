"""Attention over blocks of keys: the golden files, a definition row by row, and the properties of every setting."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")
pytest.importorskip("transformers")

from brine_sea import blocks_brine_sea as blocks
from brine_sea.configuration_brine_sea import SeaSettings, Shape

GOLDEN = sorted((Path(__file__).parents[3] / "tests" / "golden").glob("blocks_*.h5"))
DOUBLE = torch.float64
FORM = dict(mask="blocks", decoder="none", gates="head", pooled_prior=True)


class Golden:
    """A golden file: the block with its weights in f64, and its inputs."""

    def __init__(self, path: Path):
        with h5py.File(path) as file:
            self.tensors = {}
            file.visititems(lambda name, x: self.tensors.update({name: x[()]}) if isinstance(x, h5py.Dataset) else None)
            config = dict(file["config"].attrs)
        counts = {name: int(config[name]) for name in ("block", "sinks", "local", "tile", "columns", "survivors")}
        settings = SeaSettings(
            k=counts["block"] * int(config["chosen"]),
            prior=["none", "performer", "learned"][int(config["prior"])],
            prior_features=int(config["prior_features"]) or 64,
            opinion=float(config["opinion"]),
            **counts,
            **FORM,
        )
        shape = Shape(
            heads=int(config["H"]),
            groups=int(config["kv_heads"]),
            head_size=int(config["d"]),
            max_positions=int(config["T"]),
            causal=True,
            rotary=bool(config["rotary"]),
        )
        self.block = blocks.BlockAttention(shape, settings).to(DOUBLE)
        weights = {
            n.removeprefix("weights/"): torch.tensor(x) for n, x in self.tensors.items() if n.startswith("weights/")
        }
        missing, unexpected = self.block.load_state_dict(weights, strict=False)
        assert not missing and not unexpected
        valid = torch.tensor(self.tensors["inputs/valid"]).bool()
        self.visible = None if bool(valid.all()) else valid
        self.q, self.k, self.v = (self.tensor(f"inputs/{name}") for name in "qkv")
        self.content = None
        if "inputs/q_content" in self.tensors:
            self.content = self.tensor("inputs/q_content"), self.tensor("inputs/k_content")

    def tensor(self, name):
        return torch.tensor(self.tensors[name], dtype=DOUBLE)

    def __call__(self, **changes):
        self.block.capture = {}
        return self.block(self.q, self.k, self.v, self.visible, self.content, **changes)


class Cache:
    """The tensors of a cache, by the number of a slot."""

    def __init__(self):
        self.tensors = {}

    def __call__(self, slot, new, kept=None):
        known = self.tensors.get(slot)
        if not new.shape[2]:
            return new if known is None else known
        if known is not None and kept != 0:
            new = torch.cat([known[:, :, :kept], new], 2)
        self.tensors[slot] = new
        return new

    def cut(self, tokens):
        """As a DynamicCache does: as many rows are removed of every tensor, of sums over blocks, too."""
        self.tensors = {slot: x[:, :, :-tokens] for slot, x in self.tensors.items()}


def in_pieces(made, inputs, visible, content, ends, cache=None):
    """The outputs of passes to the ends of `ends`, one after another, and what was captured: bits [B, G, R, N]."""
    q, k, v = inputs
    cache, parts, found, start = cache or Cache(), [], {"chosen": [], "kept": []}, 0
    count = -(-k.shape[2] // made.settings.block)
    for end in ends:
        made.capture = {}
        seen = None if visible is None else visible[:, :end]
        piece = content and tuple(x[:, :, start:end] for x in content)
        parts.append(made(q[:, :, start:end], k[:, :, :end], v[:, :, :end], seen, piece, cache))
        for name, pieces in found.items():
            bits = made.capture[name]
            pieces.append(torch.nn.functional.pad(bits, (0, count - bits.shape[-1])))
        start = end
    return torch.cat(parts, 2), {name: torch.cat(pieces, 2) for name, pieces in found.items()}


def cases():
    return pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])


def test_the_golden_files_are_there():
    assert len(GOLDEN) >= 4


@cases()
def test_equals_the_golden_file(path):
    golden = Golden(path)
    leaves = [golden.v.requires_grad_(), golden.block.gates]
    y = golden().transpose(1, 2).flatten(2)
    for name, bits in golden.block.capture.items():
        assert torch.equal(bits, golden.tensor(f"intermediate/{name}").bool()), name
    assert torch.allclose(y, golden.tensor("output/c_sea"), rtol=0, atol=1e-12)
    # L_approx, in the gradients of the others, is not computed here.
    gradients = torch.autograd.grad((y * golden.tensor("inputs/cotangent")).sum(), leaves)
    for name, gradient in zip(("v", "gates"), gradients, strict=True):
        assert torch.allclose(gradient, golden.tensor(f"grad/{name}"), rtol=0, atol=1e-12), name


@cases()
@pytest.mark.parametrize("ends", [range(1, 200), [7, 8, 9, 30, 31, *range(32, 200)], [3, 29, 200]], ids=str)
def test_pieces_equal_the_whole(path, ends):
    golden = Golden(path)
    whole, count = golden(), golden.q.shape[2]
    wanted = golden.block.capture
    ends = [end for end in ends if end < count] + [count]
    y, found = in_pieces(golden.block, (golden.q, golden.k, golden.v), golden.visible, golden.content, ends)
    assert torch.allclose(y, whole, rtol=0, atol=1e-12)
    if golden.visible is None:  # else each piece has another packed order
        for name, bits in wanted.items():
            assert torch.equal(found[name], bits), name


# ---- random blocks


SETTINGS = {
    "mean": dict(k=8, block=4, tile=2, columns=64, prior="none"),
    "learned": dict(k=10, block=8, tile=4, columns=64, prior="learned", prior_features=6, sinks=2, local=2),
    "levels": dict(k=8, block=4, tile=4, columns=3, survivors=1, prior="learned", prior_features=6, opinion=0.3),
    "levels of many blocks": dict(k=4, block=2, tile=2, columns=6, survivors=2, prior="none", sinks=3, local=0),
    "no fixed": dict(k=16, block=8, tile=8, columns=64, prior="none", sinks=0, local=0),
    "parts": dict(k=8, block=4, parts=2, tile=4, columns=64, prior="none", opinion=0.3),
    "parts and levels": dict(k=8, block=4, parts=4, tile=2, columns=3, prior="learned", prior_features=6),
    "three parts": dict(k=8, block=8, parts=3, tile=4, columns=4, prior="learned", prior_features=6),
    "no tiles": dict(k=4, block=4, tile=1, columns=5, prior="none"),
}


def random_block(name="mean", groups=2, causal=True, **changes):
    torch.manual_seed(3)
    shape = Shape(heads=4, groups=groups, head_size=8, max_positions=400, causal=causal, rotary=False)
    made = blocks.BlockAttention(shape, SeaSettings(**(FORM | SETTINGS[name] | changes))).to(DOUBLE)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return made


def inputs_of(tokens, groups=2, batch=2):
    torch.manual_seed(5)
    q = torch.randn(batch, 4, tokens, 8, dtype=DOUBLE)
    k, v = (torch.randn(batch, groups, tokens, 8, dtype=DOUBLE) for _ in range(2))
    return [q, k, v]


def names():
    return pytest.mark.parametrize("name", SETTINGS)


def clusters_of(x, keys, parts):
    """[(mean, keys)] of the clusters of rows x [n, d] of so many keys each."""
    distance = torch.cdist(x, x).square()
    centres = [0]
    while len(centres) < parts:
        nearest = distance[:, centres].min(1).values.masked_fill(keys == 0, -1)
        centres.append(int(nearest.argmax()))
    owner = distance[:, centres].argmin(1)
    of_parts = [(owner == p) & (keys > 0) for p in range(parts)]
    return [((x[m] * keys[m, None]).sum(0) / keys[m].sum(), keys[m].sum()) for m in of_parts if bool(m.any())]


def parts_of(x, keys, size, parts):
    """The clusters of x [n, d] of a block, or of the parts of a super-block's two halves."""
    if len(x) > size:
        halves = [parts_of(*y, size, parts) for y in zip(x.chunk(2), keys.chunk(2), strict=True)]
        means, counts = zip(*(c for half in halves for c in half), strict=True)
        x, keys = torch.stack(means), torch.stack(counts)
    return clusters_of(x, keys, parts)


def kept_by_definition(made, q, k):
    """Which blocks rows choose and keep, one row after another: q [H, T, d], k [G, T, d] -> bits [G, T, N]."""
    s, heads, groups, tokens = made.settings, made.shape.heads, made.shape.groups, q.shape[1]
    n, d, size = -(-made.k // s.block), q.shape[2], s.block
    gain, of_means = made.prior.gain if s.prior == "learned" else None, made.prior.pooled_gain
    if gain is not None:
        psi_q, psi_k = made.prior.query(q[None], None)[0], made.prior.key(k[None], None)[0]
    chosen = torch.zeros(groups, tokens, -(-tokens // size), dtype=torch.bool)
    kept = chosen.clone()

    def shares(t, g, spans):
        total = torch.zeros(len(spans), dtype=DOUBLE)
        for h in range(g * heads // groups, (g + 1) * heads // groups):
            parts = [parts_of(k[g, a:b], torch.ones(b - a, dtype=DOUBLE), size, s.parts) for a, b in spans]

            def of_parts(factor, h=h, parts=parts):
                scores = [[factor * (c @ q[h, t]) / math.sqrt(d) + n.log() for c, n in block] for block in parts]
                return torch.stack([torch.stack(block).logsumexp(0) for block in scores])

            scores, means = of_parts(of_means[h]), of_parts(1)
            if gain is not None:
                mass = torch.stack([psi_q[h, t] @ psi_k[g, a:b].sum(0) for a, b in spans])
                mass = mass / (psi_q[h, t] @ psi_k[g, : t + 1].sum(0))
                sizes = torch.tensor([b - a for a, b in spans])
                scores = scores + gain[h] * ((t + 1) * mass.clamp(min=1e-7) / sizes).log()
            total += (1 - s.opinion) * scores.softmax(0) + s.opinion * means.softmax(0)
        return total.tolist()

    for g in range(groups):
        for t in range(tokens):
            current = t // size
            fixed = {b for b in range(current + 1) if b < s.sinks or b >= current - s.local}
            level = next(z for z in range(20) if current >> z <= s.columns)
            scored = set(range(current))
            if level:
                span = 1 << level
                wide = [(i * span * size, (i + 1) * span * size) for i in range(current // span)]
                order = sorted(zip(shares(t, g, wide), range(len(wide)), strict=True), reverse=True)
                scored = {b for _, i in order[: s.survivors * n] for b in range(i * span, (i + 1) * span)}
                scored |= set(range(current // span * span, current)) | {b for b in fixed if b < current}
            scored = sorted(scored)
            p = shares(t, g, [(b * size, (b + 1) * size) for b in scored]) if scored else []
            free = sorted(((x, b) for x, b in zip(p, scored, strict=True) if b not in fixed), reverse=True)
            chosen[g, t, [b for _, b in free[:n]]] = True
            kept[g, t, sorted(fixed)] = True
            kept[g, t] |= chosen[g, t // s.tile * s.tile : t + 1].any(0)
    return chosen, kept


def dense(made, q, k, v, kept):
    """The output by a T x T mask of the blocks kept [B, G, T, N]."""
    n, tokens = q.shape[1] // k.shape[1], q.shape[2]
    seen = kept.repeat_interleave(made.settings.block, -1)[..., :tokens].repeat_interleave(n, 1).tril()
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    average = v.cumsum(2) / torch.arange(1, tokens + 1)[:, None]
    prob, mix = made.gates.sigmoid()[None, :, None].split(1, -1)
    return mix * prob * (scores.softmax(-1) @ v) + (1 - mix) * average


@names()
@pytest.mark.parametrize("tokens", [1, 5, 50])
@torch.no_grad()
def test_equals_the_definition(name, tokens):
    made, (q, k, v) = random_block(name), inputs_of(tokens, batch=1)
    made.capture = {}
    y = made(q, k, v)
    chosen, kept = kept_by_definition(made, q[0], k[0])
    assert torch.equal(made.capture["chosen"][0], chosen)
    assert torch.equal(made.capture["kept"][0], kept)
    assert torch.allclose(y, dense(made, q, k, v, kept[None]), rtol=0, atol=1e-12)


@torch.no_grad()
def test_ties_go_to_the_later_block():
    made = random_block("mean", groups=1)
    q, k, v = inputs_of(60, groups=1)
    k[:, :, 4:] = 1.0  # as the means of blocks, so their scores are equal
    made.capture = {}
    made(q, k, v)
    # Row 58 has 14 complete blocks; 0 and 13 are fixed.
    assert made.capture["chosen"][0, 0, 58].nonzero().flatten().tolist() == [11, 12]
    values = torch.tensor([[1.0, 2.0, 1.0, 1.0, -1.0], [0.0, -1.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    places = [sorted(row) for row in blocks.largest_places(values, 2).tolist()]
    assert places == [[1, 3], [-1, 0], [3, 4]]


@names()
def test_gradients(name):
    made, inputs = random_block(name), [x.requires_grad_() for x in inputs_of(45)]
    made.capture = {}
    y = made(*inputs)
    cotangent = torch.randn_like(y)
    leaves = [*inputs, made.gates]
    gradients = torch.autograd.grad((y * cotangent).sum(), leaves)
    wanted = torch.autograd.grad((dense(made, *inputs, made.capture["kept"]) * cotangent).sum(), leaves)
    for a, b in zip(gradients, wanted, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    # Finite differences of the block itself, where its mask stays.
    before, compared = made.capture, 0
    for x, gradient in zip(leaves, gradients, strict=True):
        direction, values, same = torch.randn_like(x), [], True
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                old = x.detach().clone()
                x.add_(direction, alpha=step)
                made.capture = {}
                values.append(float((made(*inputs) * cotangent).sum()))
                same &= torch.equal(made.capture["kept"], before["kept"])
                x.copy_(old)
        if same:
            assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)
            compared += 1
    assert compared >= 2
    assert all(p.grad is None for p in made.prior.parameters())


@names()
@torch.no_grad()
def test_later_tokens_change_nothing(name):
    made, (q, k, v) = random_block(name), inputs_of(90)
    made.capture = {}
    y, before = made(q, k, v), made.capture
    for cut in (1, 33, 38, 64):
        for x in (q, k, v):
            x[:, :, cut:] = torch.randn_like(x[:, :, cut:])
        made.capture = {}
        assert torch.allclose(made(q, k, v)[:, :, :cut], y[:, :, :cut], rtol=0, atol=1e-12)
        for bits, old in zip(made.capture.values(), before.values(), strict=True):
            assert torch.equal(bits[:, :, :cut], old[:, :, :cut])
        before, y = made.capture, made(q, k, v)


PLACES = [range(53), range(9, 62), [*range(3, 20), *range(24, 60)]]


@names()
def test_padding_on_any_side_changes_nothing(name):
    made, inputs = random_block(name), [x.requires_grad_() for x in inputs_of(53, batch=1)]
    plain = made(*inputs)
    cotangent = torch.randn_like(plain)
    wanted = torch.autograd.grad((plain * cotangent).sum(), inputs)
    for places in PLACES:
        visible = torch.zeros(1, 64, dtype=torch.bool)
        visible[:, list(places)] = True
        wide = [torch.full((1, x.shape[1], 64, 8), 7.0, dtype=DOUBLE) for x in inputs]
        for to, x in zip(wide, inputs, strict=True):
            to[:, :, visible[0]] = x.detach()
        y = made(*(x.requires_grad_() for x in wide), visible)
        assert torch.allclose(y[:, :, visible[0]], plain, rtol=0, atol=1e-12)
        assert not y[:, :, ~visible[0]].any()
        gradients = torch.autograd.grad((y[:, :, visible[0]] * cotangent).sum(), wide)
        for a, b in zip(gradients, wanted, strict=True):
            assert torch.allclose(a[:, :, visible[0]], b, rtol=0, atol=1e-12)
            assert not a[:, :, ~visible[0]].any()


@torch.no_grad()
def test_a_sequence_of_padding_gives_zeros():
    made, (q, k, v) = random_block("learned"), inputs_of(40)
    visible = torch.ones(2, 40, dtype=torch.bool)
    visible[1] = False
    y = made(q, k, v, visible)
    assert not y[1].any()
    assert torch.allclose(y[:1], made(q[:1], k[:1], v[:1]), rtol=0, atol=1e-12)


@names()
@torch.no_grad()
def test_pieces_with_padding_equal_the_whole(name):
    made, inputs = random_block(name), inputs_of(70)
    visible = torch.ones(2, 70, dtype=torch.bool)
    visible[0, :11], visible[1, 40:43] = False, False
    whole = made(*inputs, visible)
    for ends in ([30, 31, 39, 50, *range(51, 71)], range(1, 71), [20, 69, 70]):
        y, _ = in_pieces(made, inputs, visible, None, ends)
        assert torch.allclose(y, whole, rtol=0, atol=1e-12)


@names()
@torch.no_grad()
def test_decoding_goes_on_after_a_cut(name):
    made, inputs = random_block(name), inputs_of(60)
    whole = made(*inputs)
    cache = Cache()
    in_pieces(made, [x[:, :, :50] for x in inputs], None, None, [40, *range(41, 51)], cache)
    for cut in (1, 6, 13):
        cache.cut(cut)
        start = cache.tensors[1].shape[2]
        pieces = [(a, a + 1) for a in range(start, 50)]
        for a, b in pieces:
            y = made(inputs[0][:, :, a:b], inputs[1][:, :, :b], inputs[2][:, :, :b], None, None, cache)
            assert torch.allclose(y, whole[:, :, a:b], rtol=0, atol=1e-12)


@torch.no_grad()
def test_k_may_change_inside_a_sequence():
    made, inputs = random_block("levels"), inputs_of(40)
    cache, start = Cache(), 0
    for end, k in ((21, 8), (22, 16), (23, 4), (30, 12), *((t, 8) for t in range(31, 41))):
        made.k = k
        y = made(*(x[:, :, :end] if i else x[:, :, start:end] for i, x in enumerate(inputs)), None, None, cache)
        assert torch.isfinite(y).all()
        start = end
    made.k, whole = 8, made(*inputs)
    assert torch.allclose(y, whole[:, :, -1:], rtol=0, atol=1e-12)  # a new tile


@torch.no_grad()
def test_steps_read_sums_and_not_all_keys():
    made, inputs = random_block("mean"), inputs_of(200)
    cache = Cache()
    in_pieces(made, [x[:, :, :181] for x in inputs], None, None, [180, 181], cache)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(x))
            return out

    made.capture = None
    with Sizes():
        q, k, v = inputs
        made(q[:, :, 181:182], k[:, :, :182], v[:, :, :182], None, None, cache)
    views = {2 * 2 * 182 * 8, 2 * 2 * 181 * 8}  # of keys and values
    assert max(size for size in sizes if size not in views) <= 2 * 2 * (182 // 4) * 16


@names()
@torch.no_grad()
def test_sizes_of_bands_change_nothing(name, monkeypatch):
    made, inputs = random_block(name), inputs_of(90)
    whole = made(*inputs)
    monkeypatch.setattr(blocks, "SCORED", 64)
    monkeypatch.setattr(blocks, "GATHERED", 64)
    assert torch.allclose(made(*inputs), whole, rtol=0, atol=1e-12)


@names()
@torch.no_grad()
def test_all_blocks_are_full_attention(name):
    made, (q, k, v) = random_block(name, survivors=100), inputs_of(60)
    made.k = 60
    made.gates.fill_(60.0)  # 1 after the sigmoid
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, *(x.repeat_interleave(2, 1) for x in (k, v)), is_causal=True
    )
    assert torch.allclose(made(q, k, v), wanted, rtol=0, atol=1e-12)


@torch.no_grad()
def test_memory_is_linear(monkeypatch):
    """No tensor of a pass has as many elements as a map of T x T."""
    made = random_block("levels").float()
    q, k, v = (x.float() for x in inputs_of(400, batch=1))
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(x))
            return out

    monkeypatch.setattr(blocks, "SCORED", 1 << 12)
    monkeypatch.setattr(blocks, "GATHERED", 1 << 12)
    with Sizes():
        made(q, k, v)
    # q, or the keys' places of all tiles
    kept = 2 * (400 // 4) * 4 * (2 + 4 * 2)
    assert max(sizes) <= max(400 * 4 * 8, kept)
    assert max(sizes) < 400 * 400


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(tile=3), "tile 3 does not divide block 4"),
        (dict(causal=False), "mask blocks is for causal models, this one is an encoder"),
        (dict(prior="performer"), "prior is 'performer', mask blocks has 'none' or 'learned'"),
        (dict(decoder="lean"), "decoder is 'lean', mask blocks has 'none'"),
        (dict(gates="token"), "gates is 'token', mask blocks has 'head'"),
        (dict(oversample=2), "oversample is 2, mask blocks has 1"),
        (dict(opinion=1.5), r"opinion is 1.5, must be in \[0, 1\]"),
        (dict(sinks=-1), "sinks is -1, must not be negative"),
        (dict(mask="rows"), "mask is 'rows', known are columns, blocks"),
        (dict(block=0), "block is 0, must be at least 1"),
    ],
)
def test_refuses_by_name(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        random_block(**changes)
    assert "\n" not in str(error.value)


def test_refuses_nan():
    made, (q, k, v) = random_block(), inputs_of(60)
    q[0, 0, 50] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        made(q, k, v)


@torch.no_grad()
def test_a_cache_without_choices_is_refused():
    made, (q, k, v) = random_block(), inputs_of(20)
    with pytest.raises(ValueError, match="keys of 19 tokens, but blocks that 0 of them chose"):
        made(q[:, :, 19:], k, v, None, None, Cache())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_16_bits(kind):
    made = random_block("learned").float()
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


@names()
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
