"""Writing down what was measured: a page of tables, the figures as JSON, and a chart.

Everything goes to `bench/results/`, with the machine, the date and the versions.
"""

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from bench.procs import FASTMCP, NODE, ROOT

RESULTS = ROOT / "bench" / "results"

_BAR, _GAP, _LEFT, _WIDTH = 22, 8, 190, 760


def about() -> dict[str, str]:
    """Return what the figures depend on: machine, load, date, versions."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "load when it began": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    for package in ("antiphon", "uvicorn", "uvloop", "httptools", "msgspec", "pydantic", "mcp"):
        found[package] = version(package)
    code = "from importlib.metadata import version; print(version('fastmcp'))"
    found["fastmcp"] = _said(str(FASTMCP), "-c", code)
    found["node"] = _said(str(NODE), "--version")
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not installed"
    return done.stdout.strip()


def write(
    facts: Mapping[str, str], tables: Mapping[str, str], figures: Any, bars: Mapping[str, float]
) -> None:
    """Write all three files."""
    RESULTS.mkdir(exist_ok=True)
    lines = ["# What a round costs", "", "Written by `make bench`.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "![processor time of one round](results.svg)", ""]
    for title, table in tables.items():
        lines += [f"## {title}", "", table.rstrip(), ""]
    (RESULTS / "results.md").write_text("\n".join(lines))
    (RESULTS / "results.json").write_bytes(
        msgspec.json.format(msgspec.json.encode({"about": facts, "figures": figures}))
    )
    if bars:
        (RESULTS / "results.svg").write_text(chart(bars, facts))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def chart(bars: Mapping[str, float], facts: Mapping[str, str]) -> str:
    """Return horizontal bars as SVG: microseconds of processor time by server."""
    most = max(bars.values())
    height = 70 + len(bars) * (_BAR + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 90} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{_LEFT + _WIDTH + 90}" height="{height}" fill="#fff"/>',
        '<text x="10" y="24" font-size="16" font-weight="bold">'
        "Microseconds of processor time for one round (mrtr, 32 connections)</text>",
    ]
    for number, (name, cost) in enumerate(bars.items()):
        top = 40 + number * (_BAR + _GAP)
        width = max(1.0, cost / most * _WIDTH)
        colour = "#1f6feb" if name.startswith("antiphon") else "#9aa4b2"
        parts += [
            f'<text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{top + 16}">{cost:.0f}</text>',
        ]
    note = f"{facts['date']}; {facts['machine']}; Python {facts['python']}"
    parts.append(f'<text x="10" y="{height - 10}" font-size="11" fill="#555">{escape(note)}</text>')
    return "\n".join([*parts, "</svg>\n"])
