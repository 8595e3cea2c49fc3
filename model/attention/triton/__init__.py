"""Attention on NVIDIA GPUs, in Triton: one file for each kernel, with a plain torch reference beside it.

May import torch, triton, and of the model room the KV tensors' layout. Nothing here is imported before the `triton`
backend is chosen. Each launcher takes tensors, starts one or two kernels on the current stream, waits for nothing, and
can be captured in a CUDA graph as long as the numbers that the host gives it stay the same; on tensors without a GPU it
computes its reference instead. Which tiles a kernel is compiled for is a table (`tiles.py`), not a search at run time.
"""
