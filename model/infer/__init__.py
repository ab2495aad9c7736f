"""Inference on CPU: int8 weights, a compiled engine for two cores and the NumPy code that defines it."""
