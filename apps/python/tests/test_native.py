"""Attention over blocks by Brine's library: what PyTorch computes, with and without a cache."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rows import in_pieces

from brine_sea import blocks_brine_sea as blocks
from brine_sea import native_brine_sea as native
from brine_sea.configuration_brine_sea import BlockSettings, Shape

PROGRAM = os.environ.get("BRINE", Path(__file__).parents[3] / "build" / "release" / "brine")
LIBRARY = Path(PROGRAM).parent / "libbrine.so"


@pytest.fixture(params=[dict(), dict(tile=8, sinks=2, local=0), dict(candidates=6, columns=8), dict(k=48)])
def block(request):
    shape = Shape(heads=6, groups=2, head_size=16, max_positions=4096, causal=True, rotary=False)
    torch.manual_seed(3)
    settings = BlockSettings(**{"k": 112, "block": 16, "tile": 16, **request.param})
    block = blocks.BlockAttention(shape, settings)
    block.key_scale.copy_(torch.rand(2, 16) + 0.5)
    return block


@pytest.fixture
def library(monkeypatch):
    if not LIBRARY.exists():
        pytest.skip(f"no {LIBRARY}")
    monkeypatch.setenv("BRINE_LIBRARY", str(LIBRARY))
    native.library.cache_clear()
    assert native.library() is not None
    yield
    native.library.cache_clear()


def by_torch(monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "library_fits", lambda *_: False)
        return function()


def inputs(tokens):
    return torch.randn(2, 6, tokens, 16), torch.randn(2, 2, tokens, 16), torch.randn(2, 2, tokens, 16)


@torch.no_grad()
def test_is_what_torch_computes(block, library, monkeypatch):
    q, k, v = inputs(701)
    expected = by_torch(monkeypatch, lambda: block(q, k, v))
    used = []
    monkeypatch.setattr(blocks, "attention_by_library", lambda *x: used.append(1) or native.attention_by_library(*x))
    torch.testing.assert_close(block(q, k, v), expected, rtol=1e-4, atol=1e-5)
    assert used  # the library's, not a copy of the same operations
    block.calibrates = True
    assert block(q, k, v).isfinite().all() and block.calibrates == (block.settings.chosen == 0)


@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_takes_a_scale_of_another_type(block, library, monkeypatch, kind):
    q, k, v = inputs(301)
    block.to(kind)
    torch.testing.assert_close(block(q, k, v), by_torch(monkeypatch, lambda: block(q, k, v)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_cache_goes_on_in_torch(block, library, monkeypatch):
    """Also in the middle of a tile: the choices of earlier rows are in the cache."""
    q, k, v = inputs(301)
    whole = by_torch(monkeypatch, lambda: block(q, k, v))
    y = in_pieces(block, (q, k, v), None, [280, *range(281, 302)])
    torch.testing.assert_close(y, whole, rtol=1e-4, atol=1e-5)


def test_gradients_and_padding_are_left_to_torch(block, library, monkeypatch):
    monkeypatch.setattr(blocks, "attention_by_library", lambda *_: pytest.fail("of the library"))
    q, k, v = inputs(64)
    block(q.requires_grad_(), k, v).sum().backward()
    assert q.grad.isfinite().all()
    visible = torch.ones(2, 64, dtype=torch.bool)
    visible[0, :5] = False
    with torch.no_grad():
        block(q, k, v, visible)


@torch.no_grad()
def test_errors_are_those_of_the_library(block, library, refused):
    q, k, v = inputs(301)
    k[0, 0, 40] = float("nan")
    if block.settings.chosen:
        refused("NaN", block, q, k, v)


def test_a_wrong_path_is_an_error(monkeypatch, refused):
    monkeypatch.setenv("BRINE_LIBRARY", __file__)
    native.library.cache_clear()
    refused(r"BRINE_LIBRARY is .*test_native.py, which is not", native.library)
    native.library.cache_clear()


def test_another_version_is_not_called(library, monkeypatch, refused):
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    native.library.cache_clear()
    refused(r"libbrine.so, .*: its version is 1, wanted 2", native.library)
