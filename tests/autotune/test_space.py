"""The enumerated space: labels, distances, and what similar specs have in common."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.autotune.space import choices, digest, distance, nearest, structure
from kvc.autotune.study import nearest_label, parse_label
from kvc.emitter import Task, targets
from kvc.text import parse_kernel

from tests.autotune.conftest import FakeEmitter, task_of


def test_labels_say_all_there_is(task: Task) -> None:
    found = choices(task, [FakeEmitter()])
    assert len(found) == 20
    for choice in found:
        assert parse_label(choice.label) == (choice.name, choice.knobs)
    assert digest(found) == digest(found) != digest(found[1:])


def test_distance_counts_doublings(task: Task) -> None:
    found = {c.label: c for c in choices(task, [FakeEmitter()])}
    one, two, far = (found[f"fake.rule A={a} B={b}"] for a, b in ((4, 2), (8, 2), (16, 8)))
    assert distance(one, one) == 0 and distance(one, two) == 1 and distance(one, far) == 4
    assert nearest(one, [far, two]) is two


def test_a_setting_from_another_space_finds_its_nearest(task: Task) -> None:
    found = {c.label: c for c in choices(task, [FakeEmitter()])}
    assert nearest_label("fake.rule A=5 B=2", found) == "fake.rule A=4 B=2"
    assert nearest_label("other.rule A=5", found) is None


@pytest.mark.parametrize("name", ["hip", "triton"])
def test_every_emitter_that_fits_is_in_the_space(name: str) -> None:
    target = targets()[name]
    spec = "kernel m(x: f32[m=64,k=64], y: f32[k,n=64]) -> (z: f32[m,n]) { z[m,n] = sum(k) x[m,k] * y[k,n] }"
    task = Task(parse_kernel(spec), arch("gfx942"))
    found = choices(task, target.emitters())
    assert {c.name for c in found} == {e.name for e in target.emitters() if e.supports(task).ok}
    assert len({c.label for c in found}) == len(found)
    first = found[0].candidate(task, 0)
    assert dict(first.knobs).items() >= dict(found[0].knobs).items()


def test_structure_leaves_sizes_and_names_aside() -> None:
    one, other = task_of(64).spec, task_of(4096).spec
    half = parse_kernel("kernel twice(x: f16[n=64]) -> (y: f16[n]) { y[n] = x[n] + x[n] }")
    renamed = parse_kernel("kernel again(x: f32[n=8]) -> (y: f32[n]) { y[n] = x[n] + x[n] }")
    assert structure(one) == structure(other) == structure(renamed) != structure(half)
