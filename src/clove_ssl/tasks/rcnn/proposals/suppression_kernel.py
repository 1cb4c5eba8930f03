"""Suppression on a GPU: one program per image and level, which goes through its boxes once.

A block of boxes first meets all blocks before it, whose survivors are known. Inside the
block every box waits for the better ones, so the rule is applied to the whole block until
nothing changes: after k rounds the first k boxes are final.

A c4 detector has one level of up to 12,000 boxes, and a few programs would compare them for longer
than the rest of the GPU works on anything else. There all pairs are compared at once at first, by
many programs, which leave one bit per pair; the program that goes through the boxes only reads.
"""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from clove_ssl.layers.transfers import constant

BLOCK = 64  # boxes that are compared with as many others at once, and bits of a word
MANY = 3000  # boxes of a level from which on all pairs are compared ahead


def survivors_on_gpu(boxes: Tensor, level_sizes: Sequence[int], overlap: float) -> Tensor:
    """As ``survivors`` of ``suppression.py``, without waiting for the GPU."""
    images, count = boxes.shape[:2]
    # Bytes: a boolean of Triton has one bit, torch's has eight.
    kept = torch.zeros(images, count, dtype=torch.int8, device=boxes.device)
    starts = constant((0, *accumulate(level_sizes)), boxes.device, dtype=torch.int32)
    # In fp32, as torchvision's kernel computes: which of two boxes is suppressed depends on it.
    boxes = boxes.float().contiguous()
    grid = (images, len(level_sizes))
    if max(level_sizes, default=0) < MANY:
        _suppress[grid](boxes, kept, starts, count, overlap, BLOCK=BLOCK)
        return kept.bool()
    words = triton.cdiv(max(level_sizes), BLOCK)  # a bit for every box of a level
    # Not filled: whoever reads a word knows that its block was compared.
    covers = torch.empty(images, count, words, dtype=torch.int64, device=boxes.device)
    blocks = (images * len(level_sizes), words, words)
    _compare[blocks](
        boxes, covers, starts, count, words, overlap, LEVELS=len(level_sizes), BLOCK=BLOCK
    )
    gone = torch.zeros(*grid, words, dtype=torch.int64, device=boxes.device)
    _go_through[grid](covers, gone, kept, starts, count, words, BLOCK=BLOCK)
    return kept.bool()


@triton.jit
def _load(boxes, places, inside):
    """Corners and area of boxes; those outside are empty."""
    x0 = tl.load(boxes + 4 * places, mask=inside, other=0.0)
    y0 = tl.load(boxes + 4 * places + 1, mask=inside, other=0.0)
    x1 = tl.load(boxes + 4 * places + 2, mask=inside, other=0.0)
    y1 = tl.load(boxes + 4 * places + 3, mask=inside, other=0.0)
    return x0, y0, x1, y1, (x1 - x0) * (y1 - y0)


@triton.jit
def _covers(a0, b0, a1, b1, area, c0, d0, c1, d1, other_area, overlap):
    """Whether boxes (N,) and others (M,) overlap by more than ``overlap``: (N, M)."""
    width = tl.minimum(a1[:, None], c1[None, :]) - tl.maximum(a0[:, None], c0[None, :])
    height = tl.minimum(b1[:, None], d1[None, :]) - tl.maximum(b0[:, None], d0[None, :])
    shared = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    # Two empty boxes give 0 / 0, which is above nothing: what fills up a block covers nobody.
    return shared / (area[:, None] + other_area[None, :] - shared) > overlap


@triton.jit(do_not_specialize=["count"])  # it changes with the size of images
def _suppress(boxes, kept, starts, count, overlap, BLOCK: tl.constexpr):
    """Mark the survivors of one level of one image."""
    first = tl.load(starts + tl.program_id(1))
    last = tl.load(starts + tl.program_id(1) + 1)
    boxes += tl.program_id(0).to(tl.int64) * count * 4
    kept += tl.program_id(0).to(tl.int64) * count
    for start in range(first, last, BLOCK):
        here = start + tl.arange(0, BLOCK)
        inside = here < last
        a0, b0, a1, b1, area = _load(boxes, here, inside)
        possible = inside.to(tl.int32)
        # Boxes come best first, so nobody but an earlier one can beat a box, and of the earlier
        # blocks it is known who is left.
        for earlier in range(first, start, BLOCK):
            there = earlier + tl.arange(0, BLOCK)
            c0, d0, c1, d1, other_area = _load(boxes, there, there < last)
            better = tl.load(kept + there) != 0
            covered = _covers(c0, d0, c1, d1, other_area, a0, b0, a1, b1, area, overlap)
            possible &= 1 - tl.max((covered & better[:, None]).to(tl.int32), axis=0)
        # Inside the block a box may be beaten by one that is beaten itself, and then stays. Boxes
        # covered by a survivor go, others come back, until that holds for all.
        inner = _covers(a0, b0, a1, b1, area, a0, b0, a1, b1, area, overlap)
        inner &= here[:, None] < here[None, :]
        survives = possible
        changed = 1
        while changed > 0:
            # Ends after as many rounds as the longest chain of boxes of which each covers the next,
            # which is short as a rule.
            beaten = tl.max((inner & (survives[:, None] != 0)).to(tl.int32), axis=0)
            again = possible & (1 - beaten)
            changed = tl.sum((again != survives).to(tl.int32), axis=0)
            survives = again
        tl.store(kept + here, survives.to(tl.int8), mask=inside)
        tl.debug_barrier()  # the next block reads what all threads of this one wrote


@triton.jit(do_not_specialize=["count", "words"])
def _compare(
    boxes, covers, starts, count, words, overlap, LEVELS: tl.constexpr, BLOCK: tl.constexpr
):
    """Which boxes of a block the boxes of an earlier block, or of the same, cover."""
    image, level = tl.program_id(0) // LEVELS, tl.program_id(0) % LEVELS
    row, column = tl.program_id(1), tl.program_id(2)
    first, last = tl.load(starts + level), tl.load(starts + level + 1)
    here = first + row * BLOCK + tl.arange(0, BLOCK)
    if column >= row and first + column * BLOCK < last:
        boxes += image.to(tl.int64) * count * 4
        a0, b0, a1, b1, area = _load(boxes, here, here < last)
        # Half a word at a time: a GPU adds and shifts 32 bits at once, and 64 in several steps.
        word = tl.zeros([BLOCK], dtype=tl.int64)
        for half in tl.static_range(2):
            lane = tl.arange(0, BLOCK // 2)
            there = first + column * BLOCK + half * (BLOCK // 2) + lane
            c0, d0, c1, d1, other_area = _load(boxes, there, there < last)
            covered = _covers(a0, b0, a1, b1, area, c0, d0, c1, d1, other_area, overlap)
            # One triangle of all pairs, as places are ranks.
            covered &= here[:, None] < there[None, :]  # nobody but a better one counts
            bit = tl.full([BLOCK // 2], 1, tl.int32) << lane  # the last one is the sign
            bits = tl.sum(tl.where(covered, bit[None, :], 0), axis=1)
            word |= (bits.to(tl.int64) & 0xFFFFFFFF) << (half * (BLOCK // 2))
        place = (image.to(tl.int64) * count + here) * words + column
        tl.store(covers + place, word, mask=here < last)


@triton.jit
def _either(one, other):
    return one | other


@triton.jit(do_not_specialize=["count", "words"])
def _go_through(covers, gone, kept, starts, count, words, BLOCK: tl.constexpr):
    """Mark the survivors of one level of one image, given who covers whom."""
    image, level = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, last = tl.load(starts + level), tl.load(starts + level + 1)
    covers += image * count * words
    kept += image * count
    gone += (image * tl.num_programs(1) + level) * words
    lane = tl.arange(0, BLOCK)
    bit = lane.to(tl.int64)
    for block in range(tl.cdiv(last - first, BLOCK)):
        here = first + block * BLOCK + lane
        inside = here < last
        row = here.to(tl.int64) * words
        possible = inside.to(tl.int64) & (1 - ((tl.load(gone + block) >> bit) & 1))
        own = tl.load(covers + row + block, mask=inside, other=0)
        # As above: boxes covered by a survivor go, others come back, until that holds for all.
        survives = possible
        changed = 1
        while changed > 0:
            beaten = tl.reduce(tl.where(survives != 0, own, 0), 0, _either)
            again = possible & (1 - ((beaten >> bit) & 1))
            changed = tl.sum((again != survives).to(tl.int32), axis=0)
            survives = again
        tl.store(kept + here, survives.to(tl.int8), mask=inside)
        for start in range(block + 1, words, BLOCK):
            word = start + lane
            use = (survives != 0)[:, None] & (word < words)[None, :]
            # Beyond the last block of a level nothing was written, and nobody will look.
            rows = tl.load(covers + row[:, None] + word[None, :], mask=use, other=0)
            before = tl.load(gone + word, mask=word < words, other=0)
            tl.store(gone + word, before | tl.reduce(rows, 0, _either), mask=word < words)
        tl.debug_barrier()  # the next block reads what all threads of this one wrote
