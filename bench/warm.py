"""Imported once by the server that jobs are forked from: does what every job would spend seconds on again, which is
importing torch's tracing machinery and kvc's op table, by taking one small module through both."""

from __future__ import annotations

import warnings


def warm() -> None:
    import torch

    torch.set_num_threads(1)  # no thread may run when a job is forked
    warnings.simplefilter("ignore")
    from kvc.bench.measure import measure
    from kvc.frontends.fx.capture import capture
    from kvc.pipeline_graph import plan

    measure(
        "import torch\nimport torch.nn as nn\nModel = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))\n"
        "def get_inputs(): return [torch.rand(2, 3, 5, 5)]\ndef get_init_inputs(): return []\n"
    )
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    plan(capture(model, (torch.rand(2, 3),), mode="train").graph)


warm()
