"""Attention over blocks by Brine's library on a CPU, where it is installed: faster than PyTorch's operations.

The wheel has it; otherwise BRINE_LIBRARY is the path of libbrine.so. Without it everything is computed by PyTorch.
"""

import ctypes
import ctypes.util
import importlib.util
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .configuration_brine_sea import BlockSettings

VERSION = 1  # of brine_blocks_version()
FIELDS = ("chosen", "block", "tile", "sinks", "local", "candidates", "columns")


class Form(ctypes.Structure):
    """brine_blocks of sea/blocks/c_interface.h."""

    _fields_ = [(name, ctypes.c_int64) for name in FIELDS]


@cache
def library() -> ctypes.CDLL | None:
    """Brine's library; None: it is not here, or of another version. A wrong BRINE_LIBRARY is an error."""
    given = os.environ.get("BRINE_LIBRARY")
    package = importlib.util.find_spec("brine_sea")  # this file may be an exported student's
    own = sorted(Path(package.origin).parent.glob("lib/libbrine*.so*")) if package and package.origin else []
    path = given or (str(own[0]) if own else ctypes.util.find_library("brine"))
    if not path:
        return None
    try:
        found = ctypes.CDLL(path)
        if (version := found.brine_blocks_version()) != VERSION:
            raise OSError(f"its version is {version}, wanted {VERSION}")
        found.brine_block_attention.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        if given:
            raise ValueError(f"brine: BRINE_LIBRARY is {given}, which is not Brine's library: {error}") from None
        return None
    return found


def library_fits(*inputs: Tensor) -> bool:
    """Whether the library is there and takes these: in f32 on a CPU, without gradients."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return False
    return all(x.device.type == "cpu" and x.dtype == torch.float32 for x in inputs) and library() is not None


def attention_by_library(
    q: Tensor, k: Tensor, v: Tensor, key_scale: Tensor, form: BlockSettings
) -> tuple[Tensor, Tensor]:
    """q [B, H, T, d], k, v [B, G, T, d], key_scale [G, d] of whole sequences without padding -> [B, H, T, d], choices.

    Choices [B, G, T, n]: the blocks that a row chose and no earlier row of its tile, -1 after them.
    """
    q, k, v, key_scale = (x.detach().contiguous() for x in (q, k, v, key_scale.to(q)))
    y = torch.empty_like(q)
    choices = torch.empty(*k.shape[:3], max(1, form.chosen), dtype=torch.int32)
    sizes = (ctypes.c_int64 * 5)(len(q), q.shape[1], *k.shape[1:])
    given = Form(*(getattr(form, name) for name in FIELDS))
    found = library()
    assert found is not None
    wrong = found.brine_block_attention(
        *(ctypes.c_void_p(x.data_ptr()) for x in (q, k, v, key_scale)),
        sizes,
        ctypes.byref(given),
        ctypes.c_int(torch.get_num_threads()),
        *(ctypes.c_void_p(x.data_ptr()) for x in (y, choices)),
    )
    if wrong is not None:
        raise ValueError(wrong.decode())
    return y, choices
