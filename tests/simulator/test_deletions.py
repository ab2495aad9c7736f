"""Every instruction of an emitted kernel matters, and the simulator notices when one is missing, or a criterion of its
own says why it does not matter."""

import pytest

from tests.simulator.deletions import SPECS, coarse, delete_all, subject


def _unexplained(name: str, language: str, chip: str, others: int) -> tuple[int, list[str]]:
    found = list(delete_all(subject(name, language, chip), others))
    missed = [f"{o.subject}:{o.line} {o.before}: {o.evidence}" for o in found if o.result == "survived"]
    return sum(o.result == "killed" and coarse(o.kind) != "other" for o in found), missed


def test_a_deleted_barrier_or_wait_is_caught() -> None:
    caught, missed = _unexplained("softmax", "hip", "gfx942", others=5)
    assert caught > 5 and missed == []


@pytest.mark.long
@pytest.mark.parametrize("chip", ["gfx90a", "gfx942", "gfx950"])
@pytest.mark.parametrize("language", ["hip", "triton"])
@pytest.mark.parametrize("name", SPECS)
def test_every_deletion_is_caught_or_explained(name: str, language: str, chip: str) -> None:
    caught, missed = _unexplained(name, language, chip, others=20)
    assert caught and missed == []
