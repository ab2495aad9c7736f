"""Hostile candidates: none reaches anything, the worker answers the next candidate, and the report says what was tried.

The quick subset runs everywhere; all of it, at each level of the sandbox: `pytest -m long tests/adversarial`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.emitter import Compiled
from kvc.verify import linux, sandbox
from kvc.verify.frames import Frame
from kvc.verify.pool import WorkerPool
from kvc.verify.sandbox import Limits
from kvc.verify.verdict import Rejected

from tests.adversarial import hostile

LIMITS = Limits(memory=2 << 30, disk=1 << 28, reply=1 << 24, file=1 << 28, processes=64, cpu_s=20)
QUICK = (
    "network", "network, quietly", "write outside", "read the home folder", "read the environment", "fork bomb",
    "memory bomb", "disk bomb", "null pointer", "exit with success", "signal the parent", "signal everybody",
    "trace the worker", "crafted pickle", "crafted frame", "missing toolchain", "patched judge", "sys.modules",
    "stdin theft", "symlink out of the folder", "import hijack", "daemon left behind", "new namespaces",
)  # fmt: skip
#: Where the report names the attempt, a word of it.
NAMED = {
    "network": "look up host", "network, quietly": "open a socket", "datagram": "open a socket",
    "write outside": "open '",
    "read the home folder": "secret", "list the home folder": "list '", "fork bomb": "fork",
    "signal the parent": "signal process", "signal everybody": "signal process -1", "null pointer": "memory",
    "symlink out of the folder": "symlink", "write to installed packages": "judge.py", "raised limits": "limits",
    "new namespaces": "load the library", "trace the worker": "load the library",
}  # fmt: skip


class Scene:
    """What an attack could reach: a folder with a secret, a port that listens, this process."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder / "home"
        self.outside.mkdir()
        (self.outside / "secret").write_text(hostile.SECRET)
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.listener.settimeout(0.01)
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(self.listener.getsockname())
        self.datagrams.settimeout(0.01)
        self.facts: dict[str, Any] = {
            "outside": str(self.outside),
            "port": self.listener.getsockname()[1],
            "pid": os.getpid(),
            "secret": hostile.SECRET,
        }

    def reached(self) -> list[str]:
        """Everything that an attack got at."""
        found = [p.name for p in self.outside.iterdir() if p.name != "secret"]
        if (self.outside / "secret").read_text() != hostile.SECRET:
            found.append("secret changed")
        for name, receive in (("tcp", self.listener.accept), ("udp", lambda: self.datagrams.recv(10))):
            with contextlib.suppress(TimeoutError):
                receive()
                found.append(name)
        return found


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile.register(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def scene(tmp_path: Path, registered: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("PYTHONPATH", registered)
    monkeypatch.setenv("KVC_TEST_TOKEN", hostile.SECRET)
    sandbox._readable.cache_clear()
    made = Scene(tmp_path)
    yield made
    made.listener.close()
    made.datagrams.close()
    sandbox._readable.cache_clear()


def attempt(pool: WorkerPool, candidate: Any) -> Compiled | Rejected | KvcError:
    try:
        return pool.prepare(candidate)
    except KvcError as error:
        return error


def text_of(result: Compiled | Rejected | KvcError) -> str:
    if isinstance(result, Compiled):
        return "".join(o.asm for o in result.objects.values())
    return f"{result.diagnostic} {result.diagnostic.details}"


def contained(pool: WorkerPool, scene: Scene, name: str) -> Compiled | Rejected | KvcError:
    """Run an attack; nothing was reached, and the same worker serves the next candidate as if nothing had been."""
    before = pool._call(Frame({"action": "ping"})).body["started"]
    result = attempt(pool, hostile.python_attack(name, scene.facts))
    time.sleep(0.4 if "left behind" in name else 0)
    assert "REACHED" not in text_of(result), text_of(result)
    assert hostile.SECRET not in text_of(result)
    assert scene.reached() == []
    after = pool._call(Frame({"action": "ping"})).body["started"]
    # Where a bomb leaves the worker no time to end it, its parent ends both.
    assert after == before or "bomb" in name, "the worker had to be started again"
    honest = attempt(pool, hostile.candidate("asm = 'honest'"))
    assert isinstance(honest, Compiled) and text_of(honest) == "honest"
    return result


def test_a_quick_round_of_attacks(scene: Scene) -> None:
    with WorkerPool(1, timeout=2.0, limits=LIMITS) as pool:
        if not pool.sandbox().contained:
            pytest.skip("nothing here can contain a process")
        for name in QUICK:
            result = contained(pool, scene, name)
            if name in NAMED:
                # A machine too busy to see the attempt through ends the worker: contained, if less well told.
                said = text_of(result)
                if "KVC0604" not in said:
                    assert NAMED[name] in said, (name, said)
                    assert isinstance(result, Rejected) and result.diagnostic.code == "KVC0605"


@pytest.mark.long
@pytest.mark.parametrize("level", sandbox.LEVELS)
@pytest.mark.parametrize("name", hostile.PYTHON)
def test_every_attack_at_every_level(name: str, level: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_SANDBOX", level)
    with WorkerPool(1, timeout=4.0, limits=LIMITS) as pool:
        if pool.sandbox().level != level or level == "limits":
            pytest.skip(f"{level} is not to be had here, or contains nothing")
        contained(pool, scene, name)


@pytest.mark.parametrize("name", ["include of an absolute path", "embed of a secret", "incbin", "endless template"])
def test_the_compiler_reads_nothing_of_the_users(name: str, scene: Scene) -> None:
    cxx(scene, name)


@pytest.mark.long
@pytest.mark.parametrize("name", hostile.CXX)
def test_every_attack_on_the_compiler(name: str, scene: Scene) -> None:
    cxx(scene, name)


def cxx(scene: Scene, name: str) -> None:
    with WorkerPool(1, timeout=20.0, limits=LIMITS) as pool:
        if not pool.sandbox().contained:
            pytest.skip("nothing here can contain a process")
        result = attempt(pool, hostile.cxx_attack(name, scene.facts))
        hexadecimal = hostile.SECRET.encode().hex()
        for text in (text_of(result), str(getattr(result, "objects", ""))):
            assert "REACHED" not in text and hostile.SECRET not in text and hexadecimal not in text
        assert scene.reached() == []
        assert isinstance(attempt(pool, hostile.candidate(hostile._KERNEL.format(head="", body=""), "hip")), Compiled)


@pytest.mark.parametrize("number", range(len(hostile.LINTED)))
def test_what_is_no_kernel_does_not_get_to_run(number: int, scene: Scene) -> None:
    from kvc.emitter import target

    made = hostile.triton_attack(number, scene.facts)
    found = target("triton").lint(made.source, made.task.arch)
    assert found, made.source
    assert scene.reached() == []


def test_a_forged_answer_is_data_and_no_more(scene: Scene) -> None:
    with WorkerPool(1, timeout=5.0) as pool:
        result = attempt(pool, hostile.python_attack("crafted frame", scene.facts))
        assert not isinstance(result, Compiled) or text_of(result) == "FORGED."
        nonsense = attempt(pool, hostile.python_attack("frame of objects", scene.facts))
        assert not isinstance(nonsense, Compiled) and nonsense.diagnostic.code in ("KVC0604", "KVC0605")


def test_a_binary_that_is_not_its_text_is_refused() -> None:
    from dataclasses import replace

    from kvc.backends.triton.toolchain import compile_candidate, confirm

    source = (
        "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(x, y):\n    i = tl.arange(0, 64)\n"
        "    tl.store(y + i, tl.load(x + i) * 2)\n"
    )
    made = hostile.candidate(source, "triton")
    made = replace(made, launches=(replace(made.launches[0], options=(("num_warps", 1),)),))
    honest = compile_candidate(made)
    assert confirm(made, honest) == []
    code = honest.objects["k"]
    other = replace(code, asm=code.asm.replace("v_add_f32", "v_sub_f32").replace("v_mul_f32", "v_sub_f32"))
    assert other.asm != code.asm
    assert [d.code for d in confirm(made, replace(honest, objects={"k": other}))] == ["KVC0502"]
    broken = replace(code, asm=code.asm + "\n no_such_opcode v0")
    assert [d.code for d in confirm(made, replace(honest, objects={"k": broken}))] == ["KVC0502"]


def test_nothing_is_left_when_the_parent_goes(scene: Scene, tmp_path: Path) -> None:
    """The run is killed while a candidate loops: neither worker nor candidate stays."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), WorkerPool(1, timeout=60.0) as pool:
            pool._call(Frame({"action": "ping"}))
            slot = pool._idle.get()
            (tmp_path / "pid").write_text(str(slot.workers[()]._process.pid))
            pool._idle.put(slot)
            attempt(pool, hostile.python_attack("endless loop", scene.facts))
        os._exit(0)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    session = int((tmp_path / "pid").read_text())
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    from kvc.verify.pool import _members

    for _ in range(300):
        if not list(_members(session)):
            return
        time.sleep(0.01)
    pytest.fail(f"still there: {list(_members(session))}")


def test_the_environment_is_made_from_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", hostile.SECRET)
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/evil.so")
    made = sandbox.environment(sandbox.policy(folder="/nowhere"))
    assert hostile.SECRET not in made.values() and "LD_PRELOAD" not in made
    assert made["HOME"] == "/nowhere" and made["OMP_NUM_THREADS"] == "1"


def test_a_home_folder_is_never_readable_as_a_whole() -> None:
    readable = sandbox.policy().readable
    assert "/" not in readable and os.path.expanduser("~") not in readable
    assert not any(os.path.expanduser("~/.ssh").startswith(path.rstrip("/") + "/") for path in readable)


def test_an_unknown_level_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_SANDBOX", "castle")
    with pytest.raises(KvcError) as caught:
        sandbox.policy()
    assert caught.value.code == "KVC0106"


def test_landlock_says_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "landlock_version", lambda: 0)
    with pytest.raises(OSError):
        linux.landlock(None)
