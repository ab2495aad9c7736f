"""Every setting that an emitter offers can be written."""

import pytest
from kvc.arch import arch
from kvc.emitter import Task, target
from kvc.text import parse_kernel

SPECS = {
    "mean over a strided axis": """
kernel mean(a: f32[i1=3,i=1024]) -> (mean: f32[i]) {
  mean_t: f32[i] = sum(i1) a[i1,i]
  mean[i] = mean_t[i] / 3.0
}
""",
    "pointwise": """
kernel f(x: f32[m=64,n=128], b: f32[n]) -> (y: f32[m,n]) {
  y[m,n] = exp(x[m,n]) + b[n]
}
""",
    "pooling": """
kernel pool(x: f16[c=4,h=16,w=16]) -> (y: f16[c,i=8,j=8]) {
  y[c,i,j] = max(r=2,s=2) x[c,i * 2 + r,j * 2 + s]
}
""",
}


@pytest.mark.parametrize("name", SPECS)
def test_no_setting_crashes_its_emitter(name: str) -> None:
    task = Task(parse_kernel(SPECS[name]), arch("gfx942"))
    for emitter in target("hip").emitters():
        if emitter.supports(task).ok:
            for knobs in emitter.space(task).configurations:
                assert list(emitter.propose(task, knobs, [], 0)), (emitter.name, knobs)
