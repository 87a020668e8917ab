"""Brine from Python: SEA students in transformers (`load`), blocks in any of its models (`attach`), dumps of teachers
in PyTorch (`dump`, `DumpWriter`), and readers of Brine's files.

The readers and the writer need NumPy and h5py; models need torch and transformers, which are imported at the first
use.
"""

import importlib
import json
import os
from typing import Any

from .files import Dump
from .writer import DumpWriter

# What needs torch and transformers, by the module that has it.
MODULES = dict.fromkeys(("attach", "blocks", "detach", "layers", "save"), "attached")
MODULES |= {"QuantizedCache": "cache", "dump": "teacher", "teacher_hash": "teacher"}
__all__ = ["Dump", "DumpWriter", "load", *MODULES]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'brine_sea' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{MODULES[name]}", __name__), name)


def load(directory: str | os.PathLike[str], **options: Any) -> Any:
    """The student in a directory of `brine export`, an adapter too, as a model of transformers.

    As from_pretrained() with trust_remote_code, but with the code of this package and not that of the
    directory, which may also be an export without it. Of a directory that save(model, DIR, base=True) wrote the
    stock model with its blocks. `options` are those of from_pretrained().
    """
    from .modeling_brine_sea import STUDENTS, check_missing

    path = os.path.join(directory, "config.json")
    if os.path.exists(os.path.join(directory, "adapter_config.json")):
        raise ValueError(
            f"{directory}: is a PEFT adapter, not a model; load its base, attach blocks, then"
            " peft.PeftModel.from_pretrained(model, directory)"
        )
    if not os.path.exists(path):
        raise ValueError(f"{directory}: has no config.json; of a run, `brine export` writes a directory that has one")
    with open(path, encoding="utf-8") as file:
        names = json.load(file).get("architectures") or [None]
    inside = os.path.join(directory, "blocks")
    if os.path.isdir(inside) and names[0]:
        import transformers

        from .attached import attach

        stock = getattr(transformers, names[0])
        report = options.pop("output_loading_info", False)
        model, info = stock.from_pretrained(directory, output_loading_info=True, **options)
        check_missing(info["missing_keys"], os.fspath(directory))
        return (attach(model, inside), info) if report else attach(model, inside)
    if names[0] not in STUDENTS:
        raise ValueError(
            f"{directory}: {names[0] or 'blocks without a model'}: not a student that `brine export` wrote;"
            " brine_sea.attach puts blocks into a model of transformers"
        )
    return STUDENTS[names[0]][0].from_pretrained(directory, **options)
