"""Corpora of executed kernels: pipelines that build them, their records, quality and exports."""
