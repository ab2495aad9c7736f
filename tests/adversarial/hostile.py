"""Hostile candidates: what each tries, and by which target; the functions at the end make candidates of them.

Python attacks go through `hostile_target`, whose lint lets all of them pass, so that the sandbox alone stands in the
way; `LINTED` are those that Triton's own lint must refuse. C++ attacks go through the HIP target as it is.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvc.arch import arch
from kvc.emitter import Candidate, Launch, Origin, Task
from kvc.text import parse_kernel

SPEC = parse_kernel("kernel twice(x: f32[m=64]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}")
SECRET = "hunter2-of-the-user"

#: What each tries. {outside} is a folder of the user's that holds a file `secret`; {pid} is the test's process. An
#: attack that gets through sets `asm` to text with "REACHED" in it, or leaves its mark outside.
PYTHON: dict[str, str] = {
    "network": """
        import socket
        s = socket.create_connection(("127.0.0.1", {port}), 2)
        s.sendall(b"REACHED")
        asm = "REACHED"
    """,
    "network, quietly": """
        import socket
        try:
            s = socket.create_connection(("127.0.0.1", {port}), 2)
            asm = "REACHED"
        except OSError:
            asm = "all is well"
    """,
    "datagram": """
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"REACHED", ("127.0.0.1", {port}))
        asm = "REACHED"
    """,
    "write outside": """
        open({outside!r} + "/mark", "w").write("REACHED")
        asm = "REACHED"
    """,
    "write to installed packages": """
        import kvc.verify.judge as j
        open(j.__file__, "a").write("# REACHED")
        asm = "REACHED"
    """,
    "write to the cache": """
        import os, pathlib
        place = pathlib.Path(os.environ.get("KVC_CACHE_DIR", "/nowhere")) / "simulator"
        (place / "mark").write_text("REACHED")
        asm = "REACHED"
    """,
    "read the home folder": """
        asm = "REACHED " + open({outside!r} + "/secret").read()
    """,
    "list the home folder": """
        import os
        asm = "REACHED " + " ".join(os.listdir({outside!r}))
    """,
    "read the environment": """
        import os, glob
        asm = "REACHED" if {secret!r} in str(dict(os.environ)) else "pid"
        for name in glob.glob("/proc/*/environ"):
            try:
                if {secret!r}.encode() in open(name, "rb").read():
                    asm = "REACHED"
            except OSError:
                pass
    """,
    "fork bomb": """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """,
    "thread bomb": """
        import threading, time
        while True:
            threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    """,
    "memory bomb": """
        held = []
        while True:
            held.append(bytearray(1 << 26))
    """,
    "memory bomb of many": """
        import os, time
        for _ in range(8):
            if os.fork() == 0:
                held = []
                try:
                    while True:
                        held.append(bytearray(1 << 24))
                except MemoryError:
                    time.sleep(1000)
        time.sleep(1000)
    """,
    "disk bomb": """
        block = b"x" * (1 << 24)
        n = 0
        while True:
            with open(f"f{{n}}", "wb") as f:
                f.write(block)
            n += 1
    """,
    "endless loop": """
        while True:
            pass
    """,
    "sleep that ignores signals": """
        import signal, time
        for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        time.sleep(10000)
    """,
    "null pointer": """
        import ctypes
        ctypes.string_at(0)
    """,
    "abort": """
        import os
        os.abort()
    """,
    "exit with success": """
        import os
        os._exit(0)
    """,
    "deep recursion": """
        import sys
        sys.setrecursionlimit(1 << 30)
        def f(n):
            return f(n + 1) + 1
        f(0)
    """,
    "signal the parent": """
        import os, signal
        for pid in {{os.getppid(), {pid}, 1}}:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        asm = "pid"
    """,
    "signal everybody": """
        import os, signal
        os.kill(-1, signal.SIGKILL)
    """,
    "trace the worker": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        asm = "pid" if libc.ptrace(16, os.getppid(), 0, 0) < 0 else "REACHED"
        try:
            with open(f"/proc/{{os.getppid()}}/mem", "r+b") as f:
                asm = "REACHED"
        except OSError:
            pass
    """,
    "crafted pickle": """
        import os, pickle
        class Run:
            def __reduce__(self):
                return (os.system, ("touch {outside}/mark",))
        data = pickle.dumps(Run())
        for fd in range(1, 64):
            try:
                os.write(fd, data)
            except OSError:
                pass
        os._exit(0)
    """,
    "crafted frame": """
        import json, os, struct
        body = {{"compiled": {{"objects": {{"k": {{"toolchain": [], "log": "", "lds_bytes": 0, "extra_pointers": 0}}}},
                "resources": {{}}}}}}
        text = json.dumps({{"body": body, "arrays": [], "blobs": [["k.asm", 7], ["k.co", 4]]}}).encode()
        for fd in range(3, 64):
            try:
                os.write(fd, struct.pack("<Q", len(text)) + text + b"FORGED." + b"ELF!")
            except OSError:
                pass
        os._exit(0)
    """,
    "frame of objects": """
        import json, os, struct
        text = json.dumps({{"body": {{}}, "arrays": [["a", "|O", [1]]], "blobs": []}}).encode()
        for fd in range(3, 64):
            try:
                os.write(fd, struct.pack("<Q", len(text)) + text + b"12345678")
            except OSError:
                pass
        os._exit(0)
    """,
    "endless frame": """
        import os
        for fd in range(3, 64):
            try:
                while True:
                    os.write(fd, b"\\0" * (1 << 20))
            except OSError:
                pass
    """,
    "missing toolchain": """
        from kvc.diagnostics import KvcError
        raise KvcError("KVC0501", "there is no compiler, stop the run")
    """,
    "patched judge": """
        import kvc.verify.compare, kvc.verify.judge, kvc.verify.worker, time, sys
        def passes(*a, **k):
            return None
        kvc.verify.compare.compare = kvc.verify.judge.judge = kvc.verify.worker._check = passes
        kvc.verify.worker.execute = passes
        time.perf_counter = time.monotonic = lambda: 0.0
        asm = "pid"
    """,
    "patched linter": """
        import kvc.backends.hip as hip, kvc.backends.triton as triton
        hip.HipTarget.lint = triton.TritonTarget.lint = lambda self, source, arch: []
        asm = "pid"
    """,
    "sys.modules": """
        import sys
        for name in list(sys.modules):
            if name.startswith(("kvc", "numpy", "json")):
                sys.modules[name] = None
        asm = "pid"
    """,
    "stdin theft": """
        import os, sys
        asm = "REACHED" if os.read(0, 1) else "pid"
    """,
    "symlink out of the folder": """
        import os
        for name in ("a", "b", "c"):
            os.symlink({outside!r}, name)
            os.symlink({outside!r}, "/tmp/" + name) if not os.path.lexists("/tmp/" + name) else None
        asm = "pid"
    """,
    "import hijack": """
        import os
        for folder in (".", "/tmp", os.environ["TMPDIR"], os.path.dirname(os.environ["TMPDIR"])):
            for name in ("numpy", "json", "kvc", "sitecustomize", "usercustomize"):
                try:
                    open(os.path.join(folder, name + ".py"), "w").write("raise SystemExit('REACHED')")
                except OSError:
                    pass
        asm = "pid"
    """,
    "threads left behind": """
        import threading, time
        def later():
            time.sleep(0.3)
            open({outside!r} + "/mark", "w").write("REACHED")
        threading.Thread(target=later).start()
        asm = "pid"
    """,
    "daemon left behind": """
        import os, time
        if os.fork() == 0:
            try:
                os.setsid()
            except OSError:
                pass
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(0)
        asm = "pid"
    """,
    "new namespaces": """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        asm = "REACHED" if libc.unshare(0x10000000 | 0x00020000) == 0 else "pid"
    """,
    "raised limits": """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
            try:
                resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                asm = "REACHED"
                break
            except (ValueError, OSError):
                asm = "pid"
    """,
    "loud standard error": """
        import os
        for _ in range(200):
            os.write(2, b"x" * (1 << 20))
        asm = "pid"
    """,
}

_KERNEL = """
#include <hip/hip_runtime.h>
{head}
extern "C" __global__ void k(const float* x, float* y) {{
  int i = threadIdx.x;
  y[i] = x[i] * 2.0f;
  {body}
}}
"""

#: C++ attacks on the compiler: text before the kernel, and in it.
CXX: dict[str, tuple[str, str]] = {
    "include of an absolute path": ('#include "{outside}/secret"', ""),
    "include of a home folder by __has_include": (
        '#if __has_include("{outside}/secret")\n#define MARK "REACHED"\n#else\n#define MARK "nothing"\n#endif\n'
        "__device__ const char mark[] = MARK;",
        "y[i] += mark[0] == 'R';",
    ),
    "embed of a secret": (
        '__device__ const unsigned char mark[] = {{\n#embed "{outside}/secret"\n}};',
        "y[i] += mark[i % sizeof(mark)];",
    ),
    "incbin": ("", 'asm volatile(".incbin \\"{outside}/secret\\"");'),
    "include of itself": ("#include __FILE__", ""),
    "include of an endless device": ('#include "/dev/zero"', ""),
    "endless template": (
        "template <int N> struct deep {{ static const int v = deep<N + 1>::v + deep<N + 2>::v; }};",
        "y[i] = deep<0>::v;",
    ),
    "endless constant": (
        "constexpr unsigned long spin(unsigned long n) {{ unsigned long s = 0;"
        " for (unsigned long i = 0; i < n; ++i) for (unsigned long j = 0; j < n; ++j) s += i ^ j; return s; }}\n"
        "constexpr unsigned long spun = spin(1ul << 40);",
        "y[i] = spun;",
    ),
    "exponential macro": (
        "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(x))))\n#define C(x) B(B(B(x)))",
        "C(C(y[i] += 1;))",
    ),
    "enormous array": ("__device__ char huge[1ul << 40] = {{1}};", "y[i] += huge[i];"),
    "pragma": (
        '#pragma clang module import std\n#pragma comment(lib, "{outside}/secret")\n#pragma include_alias("a", "b")',
        "",
    ),
    "flags by pragma": ('#pragma clang diagnostic push\n#pragma GCC dependency "{outside}/secret"', ""),
}

#: Python attacks that are kernels of Triton's for the rest; its lint refuses every one.
LINTED = (
    "import os\nos.system('touch {outside}/mark')",
    "open('{outside}/mark', 'w')",
    "exec(\"__import__('os').system('touch {outside}/mark')\")",
    "x = triton.__dict__['os'] if False else tl.core.builtins.open('{outside}/mark', 'w')",
    "from triton.backends import compiler",
    "import triton.runtime.driver",
    "def f():\n    return 1\nf()",
    "class A:\n    x = open('{outside}/mark', 'w')",
    "x = [open for _ in (1,)][0]('{outside}/mark', 'w')",
    "@(lambda f: open('{outside}/mark', 'w'))\ndef g(): pass",
)


def candidate(source: str, target: str = "hostile") -> Candidate:
    """A candidate of that source, launched as kernel `k` on one wave."""
    launch = Launch("k", (1, 1, 1), (64, 1, 1), ("x", "y"), 0, ())
    return Candidate(Task(SPEC, arch("gfx942")), target, "foreign", source, (launch,), (), (), Origin("test", "1"))


def python_attack(name: str, facts: Mapping[str, object]) -> Candidate:
    return candidate(textwrap.dedent(PYTHON[name]).format(**facts))


def cxx_attack(name: str, facts: Mapping[str, object]) -> Candidate:
    head, body = (part.format(**facts) for part in CXX[name])
    made = candidate(_KERNEL.format(head=head, body=body), "hip")
    return replace(made, schedule="foreign")


def triton_attack(number: int, facts: Mapping[str, object]) -> Candidate:
    source = (
        "import triton\nimport triton.language as tl\n\n"
        + LINTED[number].format(**facts)
        + "\n\n@triton.jit\ndef k(x, y):\n    i = tl.arange(0, 64)\n    tl.store(y + i, tl.load(x + i) * 2)\n"
    )
    return candidate(source, "triton")


def register(folder: Path) -> str:
    """Make `hostile` a target for every process whose PYTHONPATH has the folder that is returned."""
    here = Path(__file__).parent
    (folder / "hostile_target.py").write_text((here / "hostile_target.py").read_text())
    info = folder / "hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvc.targets]\nhostile = hostile_target:HostileTarget\n")
    os.chmod(folder, 0o755)
    return str(folder)
