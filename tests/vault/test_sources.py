"""Sources: what they write runs, is the same again, and gives specs that are what the reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.interpret import interpret
from kvc.vault.harvest import Reference, harvest
from kvc.vault.sources import folder, library, nn_modules
from kvc.vault.sources.generate import SIZE_VARIANTS, program
from kvc.vault.sources.mix import references
from kvc.verify.inputs import draw

from tests.vault.samples import REFERENCE


def _run(source: str) -> Any:
    scope: dict[str, Any] = {}
    exec(compile(source, "reference", "exec"), scope)
    torch.manual_seed(0)
    model = scope["Model"](*scope["get_init_inputs"]()).eval()
    with torch.no_grad():
        return model(*scope["get_inputs"]())


@pytest.mark.parametrize("start", range(0, 90, 30))
def test_random_programs_run_and_are_not_constant(start: int) -> None:
    for number in range(start, start + 30):
        results = _run(program(number))
        first = results[0] if isinstance(results, tuple) else results
        assert first.numel() == 1 or bool((first != first.reshape(-1)[0]).any()), program(number)


def test_random_programs_are_the_same_again_and_differ_by_seed() -> None:
    assert program(11) == program(11)
    assert program(11) != program(11, seed=1)


def test_variants_of_a_skeleton_differ_in_sizes_alone() -> None:
    texts = [program(SIZE_VARIANTS * 7 + i) for i in range(SIZE_VARIANTS)]
    assert len(set(texts)) > 1


def test_specs_of_a_reference_compute_it() -> None:
    (item,) = harvest(Reference("user", "a test", "Apache-2.0", REFERENCE))
    drawn = draw(item.spec, "normal", 3)
    scope: dict[str, Any] = {}
    exec(compile(item.functional, "functional", "exec"), scope)
    (got,) = scope["functional"](*drawn.values())
    (want,) = interpret(item.spec, drawn).values()
    torch.testing.assert_close(got.double().reshape(want.shape), want, rtol=1e-5, atol=1e-6)


def test_modules_of_torch_are_written_for_every_row() -> None:
    for row in range(len(nn_modules.ROWS)):
        origin, source, _ = nn_modules.variant(row, 0)
        assert origin.startswith("torch.nn.")
        _run(source)


@pytest.mark.long
def test_transformers_models_are_small() -> None:
    pytest.importorskip("transformers")
    reference = library.reference({"library": "transformers", "model": "gpt2", "number": 0})
    assert _run(reference.source).shape[-1] == 48


def test_folders_give_their_references(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(REFERENCE)
    (tmp_path / "helper.py").write_text("x = 1\n")
    (task,) = folder.jobs(tmp_path, "MIT")
    assert task["reference"]["origin"] == "a.py"
    assert task["reference"]["licence"] == "MIT"


def test_a_folder_without_references_and_unknown_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KvcError, match="holds no references"):
        list(folder.jobs(tmp_path))
    with pytest.raises(KvcError, match="source 'nowhere'"):
        references(["nowhere"])
