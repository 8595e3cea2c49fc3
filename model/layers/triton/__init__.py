"""The layers between the matrices, in Triton: one file for each kernel, with a plain torch reference beside it.

May import torch and triton. See `model/attention/triton/` for what launchers promise.
"""
