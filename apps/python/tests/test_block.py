"""The block against the golden files of Brine, and the properties that every setting of it has."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("h5py")
pytest.importorskip("transformers")

from rows import DOUBLE, GoldenFile, Results, in_pieces, inputs_of, widened

from brine_sea import attention_brine_sea as block
from brine_sea import columns_brine_sea as columns
from brine_sea.configuration_brine_sea import SeaSettings, Shape

FILES = (Path(__file__).parents[3] / "tests" / "golden").glob("*.h5")
GOLDEN = sorted(path for path in FILES if not path.name.startswith("blocks_"))
cases = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)


def settings_in(config):
    """What a file does not say has the defaults of SeaSettings."""
    of = {"columns": "K", "decoder": "preset"}
    same = ("k", "mode", "mu_scope", "gates", "features", "feature_divisor", "prior_features", "pooled_prior")
    given = {name: config[key] for name, key in (of | dict(zip(same, same, strict=True))).items() if key in config}
    given = {name: x.decode() if isinstance(x, bytes) else x.item() for name, x in given.items()}
    features = {} if config["causal"] else {"features": "softmax"}
    return SeaSettings(prior=["none", "performer", "learned"][config["prior"]], **features | given)


class Golden(GoldenFile):
    """A golden file, and the block with its weights in f64."""

    def __init__(self, path):
        super().__init__(path)
        weights = {n.removeprefix("weights/"): self.tensor(n) for n in self.tensors if n.startswith("weights/")}
        positions = len(weights.get("v_identity.table", self.q[0, 0]))
        self.block = block.SeaAttention(self.shape(positions), settings_in(self.config)).to(DOUBLE)
        self.block.load_state_dict(weights)
        self.content = None
        if "inputs/q_content" in self.tensors:
            self.content = self.tensor("inputs/q_content"), self.tensor("inputs/k_content")

    def __call__(self, q=None, **changes):
        self.block.capture = {}
        y = self.block(self.q if q is None else q, self.k, self.v, self.visible, self.content, **changes)
        return y.transpose(1, 2).flatten(2)


def test_the_golden_files_are_there():
    assert len(GOLDEN) >= 10


@cases
def test_equals_the_golden_file(path):
    golden = Golden(path)
    y = golden()
    rows = torch.arange(y.shape[1]) < golden.valid.sum(1)[:, None]
    for name, key, tolerance in (("scores", "S", 1e-9), ("estimate", "estimate", 1e-10), ("selected", "selected", 0)):
        wanted, found = golden.tensor(f"intermediate/{key}"), golden.block.capture[name].to(DOUBLE)
        at = rows[:, None, :, None].expand_as(wanted)
        if name == "scores":  # of columns without a key they are not used
            at = at & (golden.tensor("intermediate/estimate") > 0)
        assert torch.allclose(found[at], wanted[at], rtol=0, atol=tolerance), name
    assert torch.allclose(y, golden.tensor("output/c_sea"), rtol=0, atol=1e-10)


@cases
def test_single_tokens_equal_the_whole(path):
    golden = Golden(path)
    if not golden.block.shape.causal:
        pytest.skip("an encoder")
    whole = golden()
    ends = [5, 6, 7, 11, *range(12, whole.shape[1] + 1)]
    inputs = golden.q, golden.k, golden.v
    y = in_pieces(golden.block, inputs, golden.visible, ends, content=golden.content)
    assert torch.allclose(y.transpose(1, 2).flatten(2), whole, rtol=0, atol=1e-10)


@cases
def test_tiles_change_nothing(path, monkeypatch):
    golden = Golden(path)
    whole = golden()
    monkeypatch.setattr(columns, "TILE", 64)
    assert torch.allclose(golden(), whole, rtol=0, atol=1e-12)


@cases
def test_gradients(path):
    golden = Golden(path)
    if golden.block.settings.features == "softmax":
        pytest.skip("the maxima in softmax features are constants of the gradient, not of a difference")
    golden.q, golden.k, golden.v = (x.requires_grad_() for x in (golden.q, golden.k, golden.v))
    torch.manual_seed(1)
    y = golden()
    cotangent = torch.randn_like(y)
    inputs = [golden.q, golden.k, golden.v, *golden.block.parameters()]
    gradients = torch.autograd.grad((y * cotangent).sum(), inputs, allow_unused=True)
    selected = golden.block.capture["selected"]
    compared = 0
    for x, gradient in zip(inputs, gradients, strict=True):
        direction = torch.randn_like(x)
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                before = x.detach().clone()
                x.add_(direction, alpha=step)
                values.append((golden() * cotangent).sum())
                x.copy_(before)
            same = torch.equal(golden.block.capture["selected"], selected)
        if not same:  # a mask has no derivative where it changes
            continue
        wanted = float(values[0] - values[1]) / 2e-6
        computed = 0.0 if gradient is None else float((gradient * direction).sum())
        assert computed == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        compared += 1
    assert compared >= 3


def random_block(causal=True, groups=2, **settings):
    torch.manual_seed(3)
    shape = Shape(heads=4, groups=groups, head_size=8, max_positions=400, causal=causal, rotary=False)
    made = block.SeaAttention(shape, SeaSettings(**settings)).to(DOUBLE)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return made


LIGHT = dict(k=8, columns=16, decoder="none", gates="head", prior="learned", prior_features=6, pooled_prior=True)
SETTINGS = {
    "light": LIGHT | dict(prior_units=4),
    "light, single keys": LIGHT,
    "performer": dict(k=8, columns=16),
    "paper": dict(k=8, columns=16, decoder="paper", prior="none", mu_scope="token"),
    "per query": LIGHT | dict(mode="per-query", gates="token"),
}
ENCODERS = {
    "paper": dict(k=8, columns=16, prior="none"),
    "softmax": dict(k=8, columns=16, features="softmax", mode="per-head"),
    "light": LIGHT | dict(mode="per-batch", prior_units=2),
    "nearest": dict(k=8, columns=16, identity_interpolation="nearest", mode="per-query"),
}


@pytest.mark.parametrize("causal, name", [(True, n) for n in SETTINGS] + [(False, n) for n in ENCODERS])
def test_padding_on_any_side_changes_nothing(causal, name):
    made = random_block(causal, **(SETTINGS if causal else ENCODERS)[name])
    q, k, v = inputs_of(53, batch=1)
    plain = made(q, k, v)
    for positions in (range(53), range(9, 62), [*range(3, 20), *range(24, 60)]):
        wide, visible = widened((q, k, v), positions)
        y = made(*wide, visible)
        assert torch.allclose(y[:, :, visible[0]], plain, rtol=0, atol=1e-10)
        assert not y[:, :, ~visible[0]].any()


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_with_padding_equal_the_whole(name):
    made = random_block(**SETTINGS[name])
    q, k, v = inputs_of(70)
    visible = torch.ones(2, 70, dtype=torch.bool)
    visible[0, :11], visible[1, 40:43] = False, False
    whole = made(q, k, v, visible)
    y = in_pieces(made, (q, k, v), visible, [30, 31, 39, 50, *range(51, 71)])
    assert torch.allclose(y, whole, rtol=0, atol=1e-10)


def skipped_scores(made, q, k, v, skip):
    """Scores of all rows under query_skip, by its definition: the decoder reads the skipped rows alone."""
    capture: dict = {}
    made.query_skip, made.capture = 1, capture
    made(q, k, v)
    scores, tokens = capture["scores"], q.shape[2]
    if isinstance(made.decoder, block.MapDecoder):
        seen = []
        forward = made.decoder.forward
        made.decoder.forward = lambda x, valid: seen.append(x) or forward(x, valid)
        made(q, k, v)
        made.decoder.forward = forward
        (rows,) = seen  # of nu
        ones = torch.ones(len(q), tokens, dtype=torch.bool)
        few = forward(rows[:, :, ::skip].contiguous(), ones[:, ::skip])
        # What the priors add to a row does not depend on the decoder.
        added = scores - forward(rows, ones)
        scores = added[:, :, ::skip] + few
        return scores.repeat_interleave(skip, 2)[:, :, :tokens]
    return scores[:, :, ::skip].repeat_interleave(skip, 2)[:, :, :tokens]


@pytest.mark.parametrize("skip", [2, 5])
@pytest.mark.parametrize("causal, name", [(True, n) for n in SETTINGS] + [(False, n) for n in ENCODERS])
def test_skipped_queries_take_the_scores_before_them(causal, name, skip):
    made = random_block(causal, **(SETTINGS if causal else ENCODERS)[name])
    q, k, v = inputs_of(53)
    wanted = skipped_scores(made, q, k, v, skip)
    made.query_skip, made.capture = skip, {}
    y = made(q, k, v)
    assert torch.allclose(made.capture["scores"], wanted, rtol=0, atol=1e-10)
    # A row softmaxes the scores over its columns.
    rows = torch.arange(1, 54).expand(2, -1) if causal else torch.full((2, 53), 53)
    assert torch.allclose(made.capture["estimate"], made.column_softmax(wanted, rows), rtol=0, atol=1e-10)
    # With padding, and of a causal model in pieces from a cache, nothing changes.
    positions = [*range(3, 20), *range(24, 60)]
    wide, visible = widened((q, k, v), positions)
    assert torch.allclose(made(*wide, visible)[:, :, positions], y, rtol=0, atol=1e-10)
    if not causal:
        return
    for mask, inputs in ((None, (q, k, v)), (visible, wide)):
        whole = in_pieces(made, inputs, mask, [27, 28, 30, 37, *range(38, inputs[0].shape[2] + 1)])
        assert torch.allclose(whole if mask is None else whole[:, :, positions], y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("units, tokens", [(0, 300), (1, 300), (3, 300), (4, 129)])
def test_sums_over_columns_equal_sums_of_keys(units, tokens):
    torch.manual_seed(1)
    q, k = torch.rand(2, 4, tokens, 5, dtype=DOUBLE), torch.rand(2, 2, tokens, 5, dtype=DOUBLE)
    widths = torch.arange(1, tokens + 1).expand(2, -1)
    rows = columns.Rows(widths, widths - 1, torch.full((2,), tokens), True, True)
    products, begins = columns.column_products(q, k, rows, 8, units)
    assert tokens > (2 * units * 8 if units else 64)  # both forms are used
    for t in (0, 3, 40, 70, tokens - 1):
        for c in range(8):
            sums = k[:, :, begins[0, t, c] : begins[0, t, c + 1]].sum(2).repeat_interleave(2, 1)
            assert torch.allclose(products[:, :, t, c], (q[:, :, t] * sums).sum(-1), rtol=1e-12)


def test_ties_go_to_the_later_column():
    chosen = columns.largest(torch.tensor([[1.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]), torch.tensor([2, 3]))
    assert chosen.tolist() == [[False, True, False, True], [False, True, True, True]]


def test_columns_of_few_keys():
    def owners(w):
        begins = columns.column_begins(torch.tensor([w]), 8)[0]
        return [c for c in range(8) for _ in range(int(begins[c + 1] - begins[c]))]

    assert owners(1) == [3]
    assert owners(5) == [0, 2, 3, 5, 7]
    assert owners(12) == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7]


def test_budgets():
    widths = torch.tensor([64, 128, 256, 512, 1000, 1024, 1500, 2048, 0])
    assert columns.columns_to_select(12, 64, 64, widths).tolist() == [768, 384, 192, 96, 49, 48, 33, 24, 0]


def test_a_capped_column_gives_spread_keys():
    selected = torch.zeros(1, 1, 1, 2, dtype=torch.bool)
    selected[..., 1] = True
    _, keys, _ = columns.entries_of(selected, torch.tensor([[20]]), 4)
    assert keys.tolist() == [12, 14, 17, 19]


def test_memory_is_linear(monkeypatch):
    """No tensor of a pass has as many elements as a map of T x T."""
    made = random_block(**SETTINGS["light"]).float()
    q, k, v = (x.float() for x in inputs_of(400, batch=1))

    entries = 400 * 4 * 8 * 8  # rows, heads, keys, head size
    monkeypatch.setattr(columns, "TILE", 1 << 14)
    with torch.no_grad(), Results() as results:
        made(q, k, v)
    assert results.largest <= entries * 1.5
    assert results.largest < 4 * 400 * 400


@pytest.mark.parametrize(
    "settings, message",
    [
        (dict(mode="per-head"), "mode per-head depends on later positions"),
        (dict(features="softmax"), "softmax features see future keys"),
        (dict(decoder="wide"), "decoder is 'wide'"),
        (dict(columns=17), "columns 17 are not a multiple"),
        (dict(k=0), "k is 0"),
        (dict(prior_units=-1), "prior_units is -1, must be at least 0"),
        (dict(feature_divisor=0), "feature_divisor is 0, must be above 0"),
        (dict(gate_bias="4"), "gate_bias is '4', must be a number"),
        (dict(pooled_prior="no"), "pooled_prior is 'no', must be true or false"),
    ],
)
def test_refuses_by_name(settings, message, refused):
    refused(message, random_block, **settings)


def test_refuses_nan(refused):
    made = random_block(**SETTINGS["light"])
    q, k, v = inputs_of(60)
    q[0, 0, 50] = float("nan")
    refused("NaN", made, q, k, v)


def test_computes_in_f32_for_16_bits():
    made = random_block(**SETTINGS["performer"]).float()
    q, k, v = (x.bfloat16() for x in inputs_of(60))
    wanted = made(q.float(), k.float(), v.float())
    y = made.bfloat16()(q, k, v)
    assert y.dtype == torch.bfloat16
    assert torch.isfinite(y).all()
    assert float((y.float() - wanted).abs().mean()) < 0.05
