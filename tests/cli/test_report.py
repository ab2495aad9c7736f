"""The report: what it holds, that it needs nothing else, that everybody can read it, and how a browser shows it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from kvc.arch import arch
from kvc.report.build import highlighted
from kvc.report.drawing import draw_graph, roofline
from kvc.text import parse_graph

from .conftest import Run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
VOID = {"meta", "path", "rect", "br", "line", "circle", "link", "img", "hr", "input"}
GRAPH = """\
graph g(%x: f32[4], %y: f32[4], %w: f32[4] @"w") {
  %a = add(%x, %w) : f32[4]
  %b = exp(%a) : f32[4]
  %c = mul(%b, %y) : f32[4]
  return %c, %a
}
"""


class Page(HTMLParser):
    """Counts elements, checks that they nest, and collects ids, links and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []  # type: ignore[list-item]
        self.links += [v for k, v in attrs if k in ("href", "src") and v]
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack.pop() == tag, tag


def test_the_page_is_whole_and_needs_nothing_else(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert "http" not in re.sub(r'"http://www.w3.org[^"]*"', "", text)
    assert page.headings[0] == 1 and all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    lock = json.loads((folder / "kvc.lock").read_text())
    for kernel in lock["kernels"]:
        assert page.links.count(f"#k-{kernel['name']}") >= 2  # in the graph, in the table, in the roofline
        for fact in (*kernel["origin"], kernel["schedule"], *kernel["checks"]):
            assert fact in text
    assert "estimate" in text and 'class="kt"' in text  # highlighted


def test_the_command_writes_it_again(kvc: Run, folder: Path, tmp_path: Path) -> None:
    ran = kvc("report", folder, "-o", tmp_path / "again.html")
    assert ran.code == 0 and ran.out.strip() == str(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == (folder / "report.html").read_text()
    assert kvc("report", tmp_path).code == 2
    assert kvc("report", folder, "-o", tmp_path / "no" / "where.html").code == 2


def test_sources_are_escaped() -> None:
    text = str(highlighted('int a = b < c && d; // "<script>"\n', "k.hip"))
    assert "<script" not in text and html.unescape(re.sub("<[^>]*>", "", text)).startswith("int a = b < c && d; //")


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_light_and_dark(folder: Path) -> None:
    """WCAG 2.2 AA: 4.5 to 1."""
    blocks = re.findall(r":root \{(.*?)\}", (folder / "report.html").read_text(), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in blocks[:2])
    texts = [n for n in light if n in ("ink", "soft", "accent", "good", "warn") or n.startswith("t-")]
    assert len(texts) == 10 and light.keys() == dark.keys()
    for theme in (light, dark):
        for name in texts:
            for ground in ("paper", "panel", "box") if name in ("ink", "soft") else ("paper", "panel"):
                pair = sorted((luminance(theme[name]), luminance(theme[ground])))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, ground, theme[name])


def test_each_step_is_drawn_below_what_it_reads() -> None:
    steps = [
        {"kernel": "add", "inputs": ["x", "w"], "outputs": ["a"], "origin": ["m.py:1"]},
        {"fallback": "aten.exp", "outputs": ["b"]},
        {"kernel": "mul", "inputs": ["b", "y"], "outputs": ["c"], "origin": []},
    ]
    kernels = {name: {"schedule": "pointwise"} for name in ("add", "mul")}
    drawing = draw_graph(parse_graph(GRAPH), steps, kernels)
    at = {(b.label, b.kind): b for b in drawing.boxes}
    layers = [at[key].layer for key in (("x", "input"), ("add", "kernel"), ("aten.exp", "fallback"), ("mul", "kernel"))]
    assert layers == sorted(set(layers)) and at["y", "input"].layer == at["mul", "kernel"].layer - 1
    assert at["c", "output"].layer > at["mul", "kernel"].layer and ("w", "input") not in at
    assert len(drawing.paths) == 6
    places = [(b.x, b.y) for b in drawing.boxes]
    assert len(set(places)) == len(places) and all(b.x >= 0 and b.x < drawing.width for b in drawing.boxes)


def test_no_kernel_stands_above_the_roofs() -> None:
    row = arch("gfx942")
    estimates = {
        "memory": {"flops": 10**9, "bytes": 10**9, "floor_us": 10**9 / row.hbm_gbps / 1e3},
        "copy": {"flops": 0, "bytes": 10**9, "floor_us": 1.0},
    }
    plot = roofline(row, estimates)
    (point,) = plot.points
    assert plot.without == 1 and point.intensity == 1.0
    assert point.tflops == pytest.approx(row.hbm_gbps / 1e3)
    assert all(0 <= x <= 720 for x, _ in plot.ticks_x) and len(plot.roofs) >= 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [375, 1280])
def test_a_browser_shows_it(folder: Path, tmp_path: Path, width: int) -> None:
    name = json.loads((folder / "kvc.lock").read_text())["kernels"][0]["name"]
    # Headless Chromium has no window narrower than 500: there the page's body is made as narrow as a phone.
    probe = """<script>addEventListener("load", () => setTimeout(() => {
  const width = Math.min(WIDTH, innerWidth);
  document.body.style.width = width + "px";
  const own = [...document.querySelectorAll("main *")].filter(e => !e.closest(".scroll, .graph, pre"));
  const wide = own.filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.tagName);
  document.title = JSON.stringify({open: [...document.querySelectorAll("details[open]")].map(d => d.id),
    wide, page: document.documentElement.scrollWidth <= innerWidth,
    focus: document.activeElement.tagName, dots: document.querySelectorAll(".dot").length});
}, 50));</script>""".replace("WIDTH", str(width))
    page = tmp_path / "page.html"
    page.write_text((folder / "report.html").read_text().replace("</body>", probe + "</body>"))
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=2000",
         "--dump-dom", f"{page.as_uri()}#k-{name}"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout)
    assert title is not None, done.stderr[-2000:]
    seen = json.loads(html.unescape(title[1]))
    assert seen["open"] == [f"k-{name}"] and seen["focus"] == "SUMMARY"  # a link to a kernel opens it
    assert seen["page"] and seen["wide"] == [] and seen["dots"] > 0
