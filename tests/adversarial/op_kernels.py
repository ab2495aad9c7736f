"""The kernels that the samples of the op table become."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from kvc.emitter import Target, composites
from kvc.kernel import KernelSpec
from kvc.ops import op_table
from kvc.pipeline_graph import plan

from tests.optable.harness import eager, graph_of, make


def op_kernels(language: Target) -> Iterator[tuple[str, KernelSpec]]:
    """(op-number/kernel, spec) for each sample of each operator, in the sample's own dtypes."""
    for definition in op_table().values():
        for number, sample in enumerate(definition.samples):
            generator = torch.Generator().manual_seed(number)
            args = [make(entry, generator) for entry in sample.tensors]
            attrs = {name: make(value, generator) for name, value in sample.attrs}
            graph = graph_of(definition, sample, args, eager(definition, args, attrs))
            for spec in plan(graph, composites(language)).kernels:
                yield f"{definition.name}-{number}/{spec.name}", spec
