"""What the tests of single blocks share: inputs, caches, passes in pieces, and the sizes of results."""

import torch

from brine_sea.configuration_brine_sea import Shape

DOUBLE = torch.float64


class GoldenFile:
    """A golden file of Brine: its config, its tensors by name, and the inputs of the block."""

    def __init__(self, path, kind=DOUBLE):
        import h5py

        self.tensors, self.kind = {}, kind
        with h5py.File(path) as file:
            file.visititems(lambda name, x: self.tensors.update({name: x[()]}) if isinstance(x, h5py.Dataset) else None)
            self.config = dict(file["config"].attrs)
        self.valid = torch.tensor(self.tensors["inputs/valid"]).bool()
        self.visible = None if bool(self.valid.all()) else self.valid
        self.q, self.k, self.v = (self.tensor(f"inputs/{name}") for name in "qkv")

    def tensor(self, name):
        return torch.tensor(self.tensors[name], dtype=self.kind)

    def shape(self, positions):
        heads, groups, d = (int(self.config.get(name, 0)) for name in ("H", "kv_heads", "d"))
        causal, rotary = (bool(self.config.get(name, default)) for name, default in (("causal", 1), ("rotary", 0)))
        return Shape(heads, groups or heads, d, positions, causal, rotary)


def inputs_of(tokens, groups=2, batch=2):
    torch.manual_seed(5)
    q = torch.randn(batch, 4, tokens, 8, dtype=DOUBLE)
    k, v = (torch.randn(batch, groups, tokens, 8, dtype=DOUBLE) for _ in range(2))
    return [q, k, v]


def widened(inputs, positions, tokens=64):
    """The inputs with their tokens at `positions` among others of padding, and the bits of these positions."""
    visible = torch.zeros(len(inputs[0]), tokens, dtype=torch.bool)
    visible[:, list(positions)] = True
    wide = [torch.full((*x.shape[:2], tokens, x.shape[3]), 7.0, dtype=x.dtype) for x in inputs]
    for to, x in zip(wide, inputs, strict=True):
        to[:, :, visible[0]] = x.detach()
    return wide, visible


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

    def coded(self, *_given):
        return None


def in_pieces(made, inputs, visible, ends, cache=None, content=None, after=lambda: None):
    """The outputs of passes to the ends of `ends`, one after another; after() follows each."""
    q, k, v = inputs
    cache, parts, start = cache or Cache(), [], 0
    for end in ends:
        seen = None if visible is None else visible[:, :end]
        of_new = content and tuple(x[:, :, start:end] for x in content)
        parts.append(made(q[:, :, start:end], k[:, :, :end], v[:, :, :end], seen, of_new, cache))
        after()
        start = end
    return torch.cat(parts, 2)


class Results(torch.utils._python_dispatch.TorchDispatchMode):
    """The shapes of the results of all operations inside it."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.shapes += [x.shape for x in (out if isinstance(out, tuple | list) else [out]) if torch.is_tensor(x)]
        return out

    @property
    def largest(self):
        return max(shape.numel() for shape in self.shapes)
