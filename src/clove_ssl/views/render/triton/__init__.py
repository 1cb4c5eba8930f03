"""Triton kernels that render groups of views; import only where Triton is installed."""
