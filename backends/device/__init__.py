"""Executors on real devices, through the vendors' driver libraries alone (no torch, no ROCm or CUDA headers)."""
