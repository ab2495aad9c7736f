"""kvc: PyTorch to verified HIP and Triton kernels for AMD CDNA GPUs."""

__version__ = "0.1.0"
