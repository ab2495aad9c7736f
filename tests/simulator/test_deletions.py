"""Barriers and waits of emitted kernels matter, and the simulator notices when one is missing."""

import pytest

from tests.simulator.deletions import SPECS, Subject, delete_all

#: Elsewhere waits for a kernel argument stand in each of several branches, and some deletions survive. In max_pool's
#: assembly an earlier branch has waited for the same registers; the others have not been read one by one.
EVERY_WAIT_MATTERS = ("softmax", "linear_gelu")


def _missed(name: str, language: str, chip: str, others: int) -> tuple[int, list[str]]:
    found = list(delete_all(Subject(name, language, chip), others))
    kinds = ("barrier", "wait") if name in EVERY_WAIT_MATTERS else ("barrier",)
    guards = [d for d in found if d.kind in kinds]
    return len(found), [f"{d.kernel}:{d.line} {d.text}" for d in guards if not (d.caught or d.redundant)]


def test_a_deleted_barrier_or_wait_is_caught() -> None:
    count, missed = _missed("softmax", "hip", "gfx942", others=5)
    assert count > 5 and missed == []


@pytest.mark.long
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("language", ["hip", "triton"])
@pytest.mark.parametrize("name", SPECS)
def test_every_deleted_barrier_and_wait_is_caught(name: str, language: str, chip: str) -> None:
    _, missed = _missed(name, language, chip, others=20)
    assert missed == []
