"""Finding the model and its inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.frontends.fx.load import load

MODEL = """
import torch
from layers import width
class Model(torch.nn.Module):
    def __init__(self, n=3, bias=True):
        super().__init__()
        self.fc = torch.nn.Linear(width(), n, bias=bias)
    def forward(self, x):
        return self.fc(x)
class Other(Model):
    def __init__(self):
        super().__init__(7)
instance = Other()
def factory():
    return Other()
def both():
    return Other(), {"x": torch.ones(1, width())}
def get_init_inputs():
    return [5]
def get_inputs():
    return [torch.randn(2, width())]
"""


def write(folder: Path, width: int = 4, text: str = MODEL) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "layers.py").write_text(f"def width():\n    return {width}\n")
    (folder / "model.py").write_text(text)
    return folder / "model.py"


@pytest.mark.parametrize(("name", "out"), [("", 5), (":Model", 5), (":instance", 7), (":factory", 7), (":both", 7)])
def test_ways_to_name_a_model(tmp_path: Path, name: str, out: int) -> None:
    loaded = load(f"{write(tmp_path / 'a')}{name}")
    assert loaded.module(*loaded.args, **loaded.kwargs).shape[-1] == out
    assert str(tmp_path) not in "".join(sys.path)


def test_the_seed_fixes_weights_and_inputs(tmp_path: Path) -> None:
    file = str(write(tmp_path / "a"))
    one, two, other = load(file), load(file), load(file, seed=1)
    assert torch.equal(one.module.fc.weight, two.module.fc.weight)
    assert torch.equal(one.args[0], two.args[0])
    assert not torch.equal(one.args[0], other.args[0])


def test_folders_do_not_share_their_helpers(tmp_path: Path) -> None:
    assert load(str(write(tmp_path / "a", 4))).args[0].shape == (2, 4)
    assert load(str(write(tmp_path / "b", 6))).args[0].shape == (2, 6)


def test_a_users_module_never_shadows_kvc(tmp_path: Path) -> None:
    file = write(tmp_path / "a")
    (file.parent / "kvc.py").write_text("raise RuntimeError('shadowed')")
    load(str(file))
    import kvc.graph

    assert kvc.graph.__name__ == "kvc.graph"


def test_package_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a")
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    monkeypatch.delitem(sys.modules, "layers", raising=False)
    loaded = load("model:both")
    assert loaded.kwargs["x"].shape == (1, 4)


@pytest.mark.parametrize(
    ("text", "name", "code", "line"),
    [
        ("import nonexistent_thing\n", "", "KVC0102", 1),
        ("def f(:\n", "", "KVC0102", 1),
        ("x = 1\n", "", "KVC0103", None),
        (MODEL, ":Missing", "KVC0103", None),
        (MODEL.replace("return [5]", "return [5, 6, 7]"), "", "KVC0102", None),
        (MODEL.replace("def get_inputs", "def no_inputs"), "", "KVC0104", 0),
        (MODEL.replace("torch.randn(2, width())", "undefined"), "", "KVC0104", 21),
    ],
)
def test_errors(tmp_path: Path, text: str, name: str, code: str, line: int | None) -> None:
    with pytest.raises(KvcError) as error:
        load(f"{write(tmp_path / 'a', text=text)}{name}")
    assert error.value.code == code
    location = error.value.diagnostic.location
    if line is not None:
        assert location is not None and (location.file, location.line) == ("model.py", line)
    assert str(tmp_path) not in str(location)


def test_no_file() -> None:
    with pytest.raises(KvcError, match="KVC0101"):
        load("does/not/exist.py")
    with pytest.raises(KvcError, match="KVC0101"):
        load("neither")
