"""The book's drawings: functions take data and axes and return the axes. The library's only matplotlib import.

:func:`timeline` is drawn by hand as SVG text, because a slider needs many small frames.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

__all__ = ["PHASES", "decode_time", "new_axes", "prefill_rate", "step_times", "timeline"]

#: The colours of the two phases. No number format has them.
PHASES = {"prefill": "#c48a00", "decode": "#33475b"}

_LIMIT = "#6b6b6b"
_LINES: dict[str, dict[str, Any]] = {
    "transformers": {"color": "#33475b", "marker": "o"},
    "lean": {"color": "#a06f00", "marker": "s"},
    "library": {"color": "#101418", "marker": "^", "linewidth": 2},
}
_WIDTH = 344  # units of a hand-made figure: its letters are 12 pixels on a phone


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


def timeline(prefill_s: float, step_s: Sequence[float], prompt_tokens: int, span_s: float) -> str:
    """Draw one request on a time axis, as SVG text: the prefill as one bar, then a bar for each decode step.

    Parameters
    ----------
    prefill_s : float
        Seconds of the prefill.
    step_s : sequence of float
        Seconds of each decode step.
    prompt_tokens : int
        Length of the prompt.
    span_s : float
        Seconds that the axis covers. The same for all frames of a slider, so that their bars compare.
    """
    left, top, tall = 12, 34, 40
    unit, axis = (_WIDTH - 2 * left) / span_s, top + tall + 6
    edge = left + prefill_s * unit
    parts = [_bar(left, top, edge - left, tall, PHASES["prefill"])]
    for seconds in step_s:
        parts.append(_bar(edge, top, max(seconds * unit - 0.5, 0.3), tall, PHASES["decode"]))
        edge += seconds * unit
    tick = next(t for t in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 1e9) if span_s / t <= 6)
    marks = [(n * tick, left + n * tick * unit) for n in range(int(span_s / tick + 1e-9) + 1)]
    parts.append(f"<path d='M{left} {axis}H{_WIDTH - left}' stroke='#1b1f24'/>")
    parts += [f"<path d='M{x:.1f} {axis}v4' stroke='#1b1f24'/>" for _, x in marks]
    parts += [_text(x, axis + 17, f"{t:g} s", "middle" if t else "start") for t, x in marks]
    decode_s = sum(step_s)
    share = prefill_s / (prefill_s + decode_s)
    rows = (
        ("prefill", prefill_s, prefill_s / prompt_tokens, "prompt"),
        ("decode", decode_s, decode_s / len(step_s), "new"),
    )
    parts.append(
        _text(left, 20, f"{prompt_tokens} prompt tokens, {len(step_s) + 1} new ones: {prefill_s + decode_s:.2f} s")
    )
    for number, (name, seconds, each, which) in enumerate(rows):
        y = axis + 42 + 20 * number
        parts.append(_bar(left, y - 10, 10, 10, PHASES[name]))
        parts.append(_text(left + 16, y, f"{name} {seconds * 1e3:,.0f} ms: {each * 1e3:.2f} ms a {which} token"))
    parts.append(_text(left, axis + 84, f"{share:.0%} of the time is prefill"))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {axis + 94}' width='460' "
        f"style='width:100%;max-width:460px;height:auto;border-radius:6px'>"
        f"<rect width='{_WIDTH}' height='{axis + 94}' fill='#fff'/>"
        f"<g font-family='system-ui,sans-serif' font-size='12.6' fill='#1b1f24'>{''.join(parts)}</g></svg>"
    )


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<rect x='{x:.1f}' y='{y:g}' width='{width:.1f}' height='{height:g}' fill='{colour}'/>"


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:g}' text-anchor='{anchor}'>{html.escape(words)}</text>"
