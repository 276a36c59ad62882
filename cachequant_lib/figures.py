"""The book's drawings: functions take data and axes and return the axes. The library's only matplotlib import."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image as Picture

from cachequant_lib.drawings.ch01 import PHASES

__all__ = ["decode_time", "new_axes", "png", "prefill_rate", "speedups", "step_times", "svg"]

_LIMIT = "#6b6b6b"
_CASES = ("#33475b", "#a06f00", "#2a7f62", "#8a3d6b")
_LINES: dict[str, dict[str, Any]] = {
    "transformers": {"color": "#33475b", "marker": "o"},
    "lean": {"color": "#a06f00", "marker": "s"},
    "library": {"color": "#101418", "marker": "^", "linewidth": 2},
}


def new_axes(width: float = 4.8, height: float = 3.7) -> Axes:
    """Make a figure of this size in inches with one pair of axes, drawn in the book's manner."""
    ax = Figure(figsize=(width, height), layout="constrained").subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


def prefill_rate(part: Mapping[str, Any], labels: Mapping[str, str], ax: Axes | None = None) -> Axes:
    """Draw prefill tokens per second against the number of prompt tokens, with the machine's two limits.

    Parameters
    ----------
    part : mapping
        One thread count of the ``baseline`` record.
    labels : mapping of str to str
        Engine to the words in the legend.
    ax : Axes, optional
        Where to draw; a new figure otherwise.
    """
    ax = new_axes() if ax is None else ax
    lengths, limits = part["prefill_sweep"]["num_tokens"], part["limits"]
    for name, found in part["prefill_sweep"]["engines"].items():
        rates = [
            [n / point[key] for n, point in zip(lengths, found["seconds"], strict=True)]
            for key in ("median", "low", "high")
        ]
        line = {"color": None} | _LINES.get(name, {})
        ax.plot(lengths, rates[0], label=labels[name], markersize=4, **line)
        ax.fill_between(lengths, rates[1], rates[2], alpha=0.15, color=line["color"])
    top = lengths[-1] / limits["prefill_products_s"][-1]
    ax.plot(lengths, [n / limits["read_s"] for n in lengths], "--", color=_LIMIT, label="limit: reading the weights")
    ax.axhline(top, linestyle=":", color=_LIMIT, label="limit: fastest products")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=10, top=top * 2)
    ax.set_xticks(lengths, [str(n) for n in lengths])
    ax.set_yticks([10, 30, 100, 300, 1000, 3000][: 5 + (top > 1500)])
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("prompt tokens in one pass")
    ax.set_ylabel("prompt tokens per second")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax


def decode_time(part: Mapping[str, Any], labels: Mapping[str, str], ax: Axes | None = None) -> Axes:
    """Draw milliseconds per new token against the tokens already there. Parameters as in :func:`prefill_rate`."""
    ax = new_axes() if ax is None else ax
    contexts = part["decode_sweep"]["context"]
    for name, found in part["decode_sweep"]["engines"].items():
        ms = [point["median"] * 1e3 for point in found["seconds"]]
        ax.plot(contexts, ms, label=labels[name], markersize=4, **_LINES.get(name, {}))
    ax.axhline(part["limits"]["read_s"] * 1e3, linestyle="--", color=_LIMIT, label="limit: reading the weights")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("tokens before the new one")
    ax.set_ylabel("ms per new token")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax


def step_times(runs: Sequence[Sequence[float]], ax: Axes | None = None) -> Axes:
    """Draw the milliseconds of every decode step, one thin line a run, and the median of all.

    Parameters
    ----------
    runs : sequence of sequences of float
        Seconds of each step of each run.
    ax : Axes, optional
        Where to draw; a new figure otherwise.
    """
    ax = new_axes(height=2.8) if ax is None else ax
    ordered = sorted(step for run in runs for step in run)
    for run in runs:
        ax.plot(range(2, len(run) + 2), [step * 1e3 for step in run], color=PHASES["decode"], alpha=0.6, linewidth=1)
    middle = ordered[len(ordered) // 2] * 1e3
    ax.axhline(middle, color=PHASES["prefill"], linewidth=2, label=f"median {middle:.1f} ms")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("number of the new token")
    ax.set_ylabel("ms")
    ax.legend(frameon=False, fontsize="small", loc="lower right")
    return ax


def speedups(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], axis: str, ax: Axes | None = None, ours: str = "this library"
) -> Axes:
    """Draw how many times as fast each engine is: a line of the picture an engine, a marker a case, on a log scale.

    Parameters
    ----------
    rows : mapping of str to mapping of str to mapping
        Engine to case to ``{"median", "low", "high"}``; a case may be missing. Drawn from top to bottom.
    axis : str
        What the numbers are.
    ax : Axes, optional
        Where to draw; a new figure otherwise.
    ours : str
        Engines whose name begins with this are written in bold.
    """
    ax = new_axes(7.2, 0.9 + 0.34 * len(rows)) if ax is None else ax
    cases = list(dict.fromkeys(case for row in rows.values() for case in row))
    for number, case in enumerate(cases):
        there = [(place, row[case]) for place, row in enumerate(rows.values()) if case in row]
        middle = [f["median"] for _, f in there]
        reach = [[f["median"] - f["low"] for _, f in there], [f["high"] - f["median"] for _, f in there]]
        places = [place + 0.2 * (number - (len(cases) - 1) / 2) for place, _ in there]
        style: dict[str, Any] = {
            "fmt": "osD^"[number % 4],
            "color": _CASES[number % len(_CASES)],
            "markersize": 4.5,
            "elinewidth": 1.2,
        }
        ax.errorbar(middle, places, xerr=reach, label=case, **style)
    ax.axvline(1, color=_LIMIT, linestyle="--", linewidth=1)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(range(len(rows)), list(rows))
    for label in ax.get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith(ours) else "normal")
    ax.invert_yaxis()
    ax.set_xlabel(axis)
    ax.legend(frameon=False, fontsize="small", ncols=len(cases), loc="lower right", bbox_to_anchor=(1, 1))
    return ax


def png(fig: Figure, *, dpi: int = 110, colours: int = 64) -> bytes:
    """Return a matplotlib figure as a small palette PNG, and close it. For heat maps and scatters."""
    raw, small = _saved(fig, "png", dpi=dpi, metadata={"Software": None}), io.BytesIO()
    picture = Picture.open(io.BytesIO(raw)).convert("RGB").quantize(colours, dither=Picture.Dither.NONE)
    picture.save(small, "PNG", optimize=True)
    return small.getvalue()


def svg(fig: Figure) -> str:
    """Return a matplotlib figure as slim SVG text (one decimal), and close it. For lines and bars."""
    text = _saved(fig, "svg", metadata={"Date": None, "Creator": None}).decode()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' (?:d|x|y|points|transform)="[^"]*"', _one_decimal, text)
    text = re.sub(r"\s+", " ", text).replace("> <", "><").strip()
    used = set(re.findall(r"#([\w.-]+)", text))
    prefix = "f" + hashlib.sha256(text.encode()).hexdigest()[:6]  # ids of two figures on a page stay apart
    text = re.sub(r' id="([\w.-]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", text)
    return re.sub(r'(url\(|href=")#', rf"\1#{prefix}", text)


def _saved(fig: Figure, kind: str, **options: Any) -> bytes:
    raw = io.BytesIO()
    if fig.get_layout_engine() is None:
        fig.set_layout_engine("constrained")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cachequant"}):
        fig.savefig(raw, format=kind, facecolor="white", **options)
    pyplot.close(fig)
    return raw.getvalue()


def _one_decimal(attribute: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d{2,}", lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), attribute[0])
