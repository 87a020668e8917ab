"""Attention of a student in transformers on the masks that `brine` chose, and the margins of both choices.

Two programs add in another order, so that of two keys whose values differ by less than f32 resolves each may keep
another one; everything computed after such a tie then differs by more than rounding. With the masks of `brine` in the
place of the student's nothing after the mask differs, and the results are compared with the usual tolerance.
"""

import math
from dataclasses import dataclass, field

import torch

from brine_sea import attention_brine_sea as block_file
from brine_sea import columns_brine_sea as columns_file

TIE = 1e-5  # of the values at the border: a smaller margin is a tie


@dataclass
class Choices:
    """What a pass with forced masks found."""

    rows: int = 0  # a query of a head of a layer
    other: int = 0  # rows with different masks in both programs
    margin: float = 0.0  # largest one of these rows, over the value at the border
    estimate: float = 0.0  # largest difference of an estimate
    places: list[str] = field(default_factory=list)  # of the first rows

    @property
    def only_ties(self) -> bool:
        return self.margin < TIE


def mask_in(layer, heads: int, tokens: int) -> torch.Tensor:
    """The mask of a layer of a capture, bits [H, T, T]."""
    rows, entries = torch.tensor(layer["row_pointers"][()]).flatten(), torch.tensor(layer["columns"][()]).long()
    query = torch.repeat_interleave(torch.arange(tokens), rows.diff())
    mask = torch.zeros(heads, tokens, tokens, dtype=torch.bool)
    mask[entries // tokens, query, entries % tokens] = True
    return mask


def border(values: torch.Tensor, chosen: torch.Tensor, refused: torch.Tensor) -> float:
    """The margin between the lowest chosen and the largest refused value, over the size of the latter."""
    if not bool(chosen.any()) or not bool(refused.any()):
        return math.inf  # one of two masks has no choice: no tie
    lowest, highest = float(values[chosen].min()), float(values[refused].max())
    return abs(lowest - highest) / max(abs(highest), 1e-30)


class Forced:
    """While it is open, the blocks attend by `masks` [layers] of bits [H, T, T]; one sequence without padding.

    `estimates` and `selected` are those of the same pass of brine, [layers] of [H, T, K]; causal models only.
    """

    def __init__(self, model, masks, estimates, selected):
        self.masks, self.estimates, self.selected = masks, estimates, selected
        self.layers = {id(block): i for i, block in enumerate(model.sea_blocks())}
        self.blocks = list(model.sea_blocks())
        self.found = Choices()

    def __enter__(self) -> Choices:
        self.output, self.attend = block_file.SeaAttention.output, block_file.attend
        forced = self

        def output(block, x, estimate, selected, z):
            forced.layer, forced.first, forced.choice = forced.layers[id(block)], 0, (estimate, selected)
            theirs = forced.estimates[forced.layer].to(estimate.dtype)
            forced.found.estimate = max(forced.found.estimate, float((estimate[0] - theirs).abs().max()))
            return forced.output(block, x, estimate, selected, z)

        block_file.SeaAttention.output, block_file.attend = output, self.attend_tile
        return self.found

    def __exit__(self, *error) -> None:
        block_file.SeaAttention.output, block_file.attend = self.output, self.attend

    def attend_tile(self, q, k, v, selected, widths, kept):
        heads, count = q.shape[1:3]
        tokens, first = k.shape[2], self.first
        self.first += count
        entries = columns_file.entries_of(selected, widths, kept)
        ours = torch.zeros(heads * count, tokens, dtype=torch.bool)
        ours[entries.row, entries.key] = True
        theirs = self.masks[self.layer][:, first : first + count].reshape(heads * count, tokens)
        self.found.rows += heads * count
        for row in (ours != theirs).any(-1).nonzero().flatten().tolist():
            self.note(row // count, first + row % count)
        # The function itself, with their entries.
        row, key = theirs.nonzero(as_tuple=True)
        of_brine = columns_file.Entries(row, key, torch.bincount(row, minlength=heads * count))
        made, columns_file.entries_of = columns_file.entries_of, lambda *_: of_brine
        try:
            return self.attend(q, k, v, selected, widths, kept)
        finally:
            columns_file.entries_of = made

    def note(self, head, token) -> None:
        """A row whose mask is another one: the margin of the choice of its columns."""
        estimate, selected = (x[0, :, token] for x in self.choice)
        theirs = self.selected[self.layer][:, token]
        mode = self.blocks[self.layer].settings.mode
        if mode != "causal-per-batch":  # columns are chosen for each head
            estimate, selected, theirs = (x[head : head + 1] for x in (estimate, selected, theirs))
        margin = math.inf  # the same columns have the same keys
        if bool((selected != theirs).any()):
            margin = border(estimate, selected, ~selected & (estimate > 0))
        self.found.other += 1
        self.found.margin = max(self.found.margin, margin)
        if len(self.found.places) < 5:
            self.found.places.append(f"layer {self.layer}, head {head}, query {token}: margin {margin:.1e}")
