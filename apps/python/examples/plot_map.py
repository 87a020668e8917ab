#!/usr/bin/env python3
"""Draws what a SEA student attends to, from a capture.

brine inspect RUN --capture a.h5 ...
pip install brine-sea[files,plots]
python plot_map.py a.h5 --layer 3 --head 0 --out map.png
"""

from __future__ import annotations

import argparse

import matplotlib
import numpy as np

from brine_sea import Capture

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# %% What to draw
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("capture", help="written by brine inspect --capture")
parser.add_argument("--layer", type=int, default=0)
parser.add_argument("--head", type=int, default=0)
parser.add_argument("--out", default="map.png")
options = parser.parse_args()

# %% The maps of a layer: the estimate in K columns, the same spread over the keys, the sparse attention
with Capture(options.capture) as capture:
    tensors = capture.layer(options.layer)
    estimate = tensors["estimate"][options.head]
    widened = capture.widened(options.layer)[options.head]
    attention = capture.map(options.layer)[options.head]
kept = (attention >= 0).sum(-1)
print(f"{len(kept)} tokens, {estimate.shape[1]} columns, {kept.mean():.1f} keys a query, at most {kept.max()}")

# %% Three pictures on one scale
panels = {"estimate, K columns": estimate, "estimate over keys": widened, "sparse attention": attention}
figure, axes = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
for axis, (title, values) in zip(axes, panels.items(), strict=True):
    shown = np.ma.masked_less_equal(values, 0)
    image = axis.imshow(shown, norm=matplotlib.colors.LogNorm(1e-4, 1), cmap="viridis", aspect="auto")
    axis.set(title=title, xlabel="column" if values is estimate else "key", ylabel="query")
figure.colorbar(image, ax=axes, label="share of a row", shrink=0.8)

figure.savefig(options.out, dpi=120)
print(f"wrote {options.out}")
