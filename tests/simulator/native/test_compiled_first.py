"""The tests of small kernels once more, with the compiled tier going first.

A fault that it did not find would not be raised, since the NumPy tier only judges what it found; a wrong value would
be seen as in the NumPy tier.
"""

import sys

import pytest

from tests.simulator.test_faults import *  # noqa: F403
from tests.simulator.test_sim_lanes import *  # noqa: F403
from tests.simulator.test_sim_memory import *  # noqa: F403
from tests.simulator.test_sim_mfma import *  # noqa: F403


@pytest.fixture(autouse=True)
def no_launch_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["kvc.simulator.launch"], "_FEW_WAVES", 0)
