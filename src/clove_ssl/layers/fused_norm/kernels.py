"""Triton kernels for batch norm with what follows it; import only where Triton is installed.

torch runs batch norm, the sum with a shortcut, ReLU and pooling as kernels of their own, and every
one of them carries the whole map through memory. Here each map is read as rarely as can be:

    forward    sums (read)        -> moments  -> normalize (read, write)
    backward   gradient_sums (read, read)  -> slopes  -> input_gradients (read, read, write)

Where a pooling follows, ``pooled_kernels`` has the first and last steps of both. The stem's
convolution, which is a kernel of ours as well, takes the sums itself.

Maps lie channels last, so they are tables of rows (one cell each) and channels. A program takes a
stretch of rows and a block of channels; what it sums goes into a table, which ``moments``
and ``slopes`` add up in a fixed order: the same map always gives the same bits.

``SIDE`` says that something is added before the ReLU. Where nothing is, the ReLU's mask is computed
again from the input in the backward pass, which is cheaper than to read the output.

``TWO`` says that what came out had two users, whose gradients are added here. Autograd would add
them in a kernel of its own, which reads both and writes a sum that only ``gradient_sums`` reads.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

# Sizes are left out of what Triton compiles a kernel for, or there would be one for every map. The
# number of channels stays: only as a multiple of 16 does it allow loads of many values at once.


@triton.jit(do_not_specialize=["rows", "stretch"])
def sums(
    x,
    table,
    rows,
    stretch,
    channels,
    R: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums of x and of its squares over a stretch of rows, both less the first row."""
    # 64 bits, since rows times channels may pass 2^31: 4096 maps of 112 x 112 x 64 do.
    part, first_row = tl.program_id(0), tl.program_id(0).to(tl.int64) * stretch
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    # Any value near the mean will do: without it, squares would drown the variance.
    level = tl.load(x + channel, mask=there, other=0.0).to(tl.float32)
    total = tl.zeros([R, C], tl.float32)
    squares = tl.zeros([R, C], tl.float32)
    last_row = tl.minimum(first_row + stretch, rows)
    # Some tiles are on their way while one is added: waiting for each would leave the memory idle.
    for start in tl.range(first_row, last_row, R, num_stages=STAGES):
        row = start + tl.arange(0, R)
        mask = (row < last_row)[:, None] & there[None, :]
        value = tl.load(x + row[:, None] * channels + channel[None, :], mask=mask, other=0.0)
        # Masked places hold 0, which minus the level would be counted; hence the second mask.
        value = tl.where(mask, value.to(tl.float32) - level[None, :], 0.0)
        total += value
        squares += value * value
    # A place of its own for every part. Atomic additions would come in any order, and so round
    # differently from run to run.
    at = table + part * 2 * channels + channel
    tl.store(at, tl.sum(total, 0), mask=there)
    tl.store(at + channels, tl.sum(squares, 0), mask=there)


@triton.jit
def _summed(table, parts, channel, there, channels, P: tl.constexpr, C: tl.constexpr):
    """Both sums of a table over its parts."""
    one = tl.zeros([P, C], tl.float32)
    two = tl.zeros([P, C], tl.float32)
    # Always in the same order: the number of parts follows from the shape alone, not from how busy
    # the GPU is.
    for start in range(0, parts, P):
        part = start + tl.arange(0, P)
        mask = (part < parts)[:, None] & there[None, :]
        at = table + part[:, None] * 2 * channels + channel[None, :]
        one += tl.load(at, mask=mask, other=0.0)
        two += tl.load(at + channels, mask=mask, other=0.0)
    return tl.sum(one, 0), tl.sum(two, 0)


@triton.jit
def at_least_zero(value):
    """A ReLU that hides nothing: what is no number stays so, and reaches the loss."""
    return tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["parts", "rows"])
def moments(
    level,  # what was taken off all values before they were summed
    table,
    mean_out,
    scale_out,
    running_mean,
    running_variance,
    batches,
    parts,
    rows,
    eps,
    momentum,
    channels,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Mean and 1 / standard deviation of every channel; running statistics follow."""
    channel = tl.program_id(0) * C + tl.arange(0, C)
    there = channel < channels
    total, squares = _summed(table, parts, channel, there, channels, P, C)
    offset = total / rows
    # Rounding may take a channel that is constant to a tiny negative variance.
    variance = at_least_zero(squares / rows - offset * offset)
    mean = tl.load(level + channel, mask=there, other=0.0).to(tl.float32) + offset
    tl.store(mean_out + channel, mean, mask=there)
    tl.store(scale_out + channel, 1.0 / tl.sqrt(variance + eps), mask=there)
    old = tl.load(running_mean + channel, mask=there, other=0.0)
    tl.store(running_mean + channel, old + momentum * (mean - old), mask=there)
    # As torch has it: a batch is normalised by the biased variance, running statistics get the
    # other.
    unbiased = variance * (rows / (rows - 1.0))
    old = tl.load(running_variance + channel, mask=there, other=0.0)
    tl.store(running_variance + channel, old + momentum * (unbiased - old), mask=there)
    # The layer's counter of batches, which torch raises as well; once, not for every block of
    # channels.
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def affine(mean, scale, weight, bias, channel, there, AFFINE: tl.constexpr):
    """Factor and summand that normalise a channel."""
    middle = tl.load(mean + channel, mask=there, other=0.0)
    factor = tl.load(scale + channel, mask=there, other=0.0)
    shift = tl.zeros_like(middle)
    if AFFINE:
        factor *= tl.load(weight + channel, mask=there, other=0.0)
        shift = tl.load(bias + channel, mask=there, other=0.0)
    return middle, factor, shift


@triton.jit(do_not_specialize=["rows"])
def normalize(
    x,
    side,
    out,
    mean,
    scale,
    weight,
    bias,
    rows,
    channels,
    AFFINE: tl.constexpr,
    SIDE: tl.constexpr,
    RELU: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """out = relu(norm(x) + side), of a tile."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    middle, factor, shift = affine(mean, scale, weight, bias, channel, there, AFFINE)
    mask = (row < rows)[:, None] & there[None, :]
    at = row[:, None] * channels + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    # Subtracted first: mean and factor folded into one summand would cancel where the mean is
    # large.
    value = (value - middle[None, :]) * factor[None, :] + shift[None, :]
    if SIDE:
        value += tl.load(side + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = at_least_zero(value)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "stretch"])
def gradient_sums(
    x,
    outer,  # gradients of what came out
    other,  # those of its second user, if it had TWO
    out,  # what came out, where something was added
    side_gradients,  # written where something was added
    table,
    mean,
    scale,
    weight,
    bias,
    rows,
    stretch,
    channels,
    AFFINE: tl.constexpr,
    SIDE: tl.constexpr,
    TWO: tl.constexpr,
    RELU: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums over a stretch of rows of g and of g * (x - mean), g being the norm's gradients."""
    part, first_row = tl.program_id(0), tl.program_id(0).to(tl.int64) * stretch
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    middle, factor, shift = affine(mean, scale, weight, bias, channel, there, AFFINE)
    total = tl.zeros([R, C], tl.float32)
    along = tl.zeros([R, C], tl.float32)
    last_row = tl.minimum(first_row + stretch, rows)
    for start in tl.range(first_row, last_row, R, num_stages=STAGES):
        row = start + tl.arange(0, R)
        mask = (row < last_row)[:, None] & there[None, :]
        at = row[:, None] * channels + channel[None, :]
        centered = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - middle[None, :]
        gradient = tl.load(outer + at, mask=mask, other=0.0).to(tl.float32)
        if TWO:
            gradient += tl.load(other + at, mask=mask, other=0.0).to(tl.float32)
            # Rounded as a sum in memory would be: the same bits as without TWO.
            gradient = gradient.to(outer.dtype.element_ty).to(tl.float32)
        if SIDE:
            if RELU:
                # From the output, as the side that was added is not kept for the backward pass.
                passed = tl.load(out + at, mask=mask, other=0.0).to(tl.float32) > 0
                gradient = tl.where(passed, gradient, 0.0)
            # Gradients behind the ReLU are those of the shortcut, too: written once here, read by
            # ``input_gradients`` instead of ``outer``, so that the ReLU is not asked again.
            tl.store(side_gradients + at, gradient.to(side_gradients.dtype.element_ty), mask=mask)
        elif RELU:
            passed = centered * factor[None, :] + shift[None, :] > 0
            gradient = tl.where(passed, gradient, 0.0)
        gradient = tl.where(mask, gradient, 0.0)
        total += gradient
        along += gradient * centered
    at = table + part * 2 * channels + channel
    tl.store(at, tl.sum(total, 0), mask=there)
    tl.store(at + channels, tl.sum(along, 0), mask=there)


@triton.jit(do_not_specialize=["parts", "rows"])
def slopes(
    table,
    scale,
    weight_gradient,
    bias_gradient,
    level_out,
    slope_out,
    parts,
    rows,
    channels,
    P: tl.constexpr,
    C: tl.constexpr,
):
    """Gradients of weight and bias, and what is taken out of those of the input."""
    channel = tl.program_id(0) * C + tl.arange(0, C)
    there = channel < channels
    total, along = _summed(table, parts, channel, there, channels, P, C)
    factor = tl.load(scale + channel, mask=there, other=0.0)
    tl.store(weight_gradient + channel, along * factor, mask=there)
    tl.store(bias_gradient + channel, total, mask=there)
    tl.store(level_out + channel, total / rows, mask=there)
    # One factor makes (x - mean) the normalised value, the other is that of its average.
    tl.store(slope_out + channel, along * factor * factor / rows, mask=there)


@triton.jit
def gradient_terms(mean, scale, weight, bias, level, slope, channel, there, AFFINE: tl.constexpr):
    """What ``store_gradients`` has to know of a channel."""
    middle, factor, shift = affine(mean, scale, weight, bias, channel, there, AFFINE)
    level = tl.load(level + channel, mask=there, other=0.0)
    slope = tl.load(slope + channel, mask=there, other=0.0)
    return middle, factor, shift, level, slope


@triton.jit
def store_gradients(inner, at, gradient, x, terms, mask, RELU: tl.constexpr):
    """Gradients of the input, from those of what the norm or the ReLU made of it."""
    middle, factor, shift, level, slope = terms
    centered = x.to(tl.float32) - middle[None, :]
    if RELU:
        passed = centered * factor[None, :] + shift[None, :] > 0
        gradient = tl.where(passed, gradient, 0.0)
    # A shift or a stretch of a whole channel changes nothing behind the norm: both go.
    gradient -= level[None, :]
    gradient -= centered * slope[None, :]
    gradient *= factor[None, :]
    tl.store(inner + at, gradient.to(inner.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def input_gradients(
    x,
    outer,  # of what came out; where something was added, the gradients of that
    inner,  # written
    mean,
    scale,
    weight,
    bias,
    level,
    slope,
    rows,
    channels,
    AFFINE: tl.constexpr,
    RELU: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Gradients of the input, of a tile."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    terms = gradient_terms(mean, scale, weight, bias, level, slope, channel, there, AFFINE)
    mask = (row < rows)[:, None] & there[None, :]
    at = row[:, None] * channels + channel[None, :]
    value = tl.load(x + at, mask=mask, other=0.0)
    gradient = tl.load(outer + at, mask=mask, other=0.0).to(tl.float32)
    store_gradients(inner, at, gradient, value, terms, mask, RELU)
