"""From parameters to pixels: on the CPU, in plain torch, and by Triton kernels."""
