"""The book's drawings. Functions take data and axes and return the axes; the hand-made ones return SVG text.

This is the library's only matplotlib import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLOURS", "decode_time", "new_axes", "prefill_rate", "timeline"]

#: Colour-blind safe (Okabe and Ito), dark enough for text on white.
COLOURS = {"prefill": "#b34700", "decode": "#0b5fa5", "limit": "#555555", "third": "#00694e"}

_LINES: dict[str, dict[str, Any]] = {
    "transformers": {"color": COLOURS["prefill"], "marker": "o", "linestyle": "-"},
    "lean": {"color": COLOURS["decode"], "marker": "s", "linestyle": "-"},
    "library": {"color": COLOURS["third"], "marker": "^", "linestyle": "-"},
}


def new_axes(width: float = 6.4, height: float = 3.6) -> Axes:
    """Make a figure of this size in inches with one pair of axes, drawn in the book's manner."""
    ax = Figure(figsize=(width, height), layout="constrained").subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.3)
    return ax


def prefill_rate(part: Mapping[str, Any], labels: Mapping[str, str], ax: Axes | None = None) -> Axes:
    """Draw prefill tokens per second against the number of prompt tokens, one line an engine.

    Parameters
    ----------
    part : mapping
        One thread count of the ``baseline`` record.
    labels : mapping of str to str
        Engine to the words in the legend.
    """
    ax = new_axes() if ax is None else ax
    lengths = part["prefill_sweep"]["num_tokens"]
    for name, found in part["prefill_sweep"]["engines"].items():
        rate = {
            key: [n / point[key] for n, point in zip(lengths, found["seconds"], strict=True)]
            for key in ("median", "low", "high")
        }
        ax.plot(lengths, rate["median"], label=labels[name], markersize=4, **_LINES.get(name, {}))
        ax.fill_between(lengths, rate["high"], rate["low"], alpha=0.15, color=_LINES.get(name, {}).get("color"))
    read_s = part["limits"]["read_s"]
    ax.plot(lengths, [n / read_s for n in lengths], "--", color=COLOURS["limit"], label="if reading were all")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [str(n) for n in lengths])
    ax.set_xlabel("prompt tokens in one forward pass")
    ax.set_ylabel("tokens per second")
    ax.legend(frameon=False)
    return ax


def decode_time(part: Mapping[str, Any], labels: Mapping[str, str], ax: Axes | None = None) -> Axes:
    """Draw milliseconds per new token against the tokens already there, one line an engine."""
    ax = new_axes() if ax is None else ax
    contexts = part["decode_sweep"]["context"]
    for name, found in part["decode_sweep"]["engines"].items():
        ms = [point["median"] * 1e3 for point in found["seconds"]]
        ax.plot(contexts, ms, label=labels[name], markersize=4, **_LINES.get(name, {}))
    ax.axhline(part["limits"]["read_s"] * 1e3, linestyle="--", color=COLOURS["limit"], label="reading the weights")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("tokens before this one")
    ax.set_ylabel("ms per new token")
    ax.legend(frameon=False)
    return ax


def timeline(prefill_s: float, step_s: Sequence[float], *, span_s: float, prompt_tokens: int, note: str = "") -> str:
    """Draw one request on a time axis as SVG text: the prefill as one bar, then a bar a decode step.

    Parameters
    ----------
    prefill_s : float
        Seconds of the prefill.
    step_s : sequence of float
        Seconds of each decode step.
    span_s : float
        Seconds that the whole width stands for; keep it over the frames of a slider so that they compare.
    prompt_tokens : int
        Length of the prompt.
    note : str
        A line under the drawing.
    """
    left, right, top, height = 10, 430, 34, 46
    unit = (right - left) / span_s
    parts = ['<rect x="0" y="0" width="440" height="196" fill="#ffffff"/>']
    x = left + prefill_s * unit
    parts.append(_bar(left, top, x - left, height, COLOURS["prefill"]))
    for seconds in step_s:
        wide = seconds * unit
        parts.append(_bar(x, top, max(wide - 0.6, 0.4), height, COLOURS["decode"]))
        x += wide
    decode_s = sum(step_s)
    total_s = prefill_s + decode_s
    step = next(s for s in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 1e9) if span_s / s <= 7)
    axis_y = top + height + 8
    parts.append(f'<path d="M{left} {axis_y}H{right}" stroke="#333333"/>')
    for tick in range(int(span_s / step + 1e-9) + 1):
        tick_x = left + tick * step * unit
        parts.append(f'<path d="M{tick_x:.1f} {axis_y}v5" stroke="#333333"/>')
        parts.append(_text(tick_x, axis_y + 18, f"{tick * step:g} s", size=12, anchor="middle" if tick else "start"))
    parts.append(_text(left, 22, f"prompt of {prompt_tokens} tokens, then {len(step_s) + 1} new ones", bold=True))
    per_prompt, per_new = prefill_s / prompt_tokens * 1e3, decode_s / len(step_s) * 1e3
    share = 100 * prefill_s / total_s
    row = axis_y + 42
    parts.append(_bar(left, row - 10, 10, 10, COLOURS["prefill"]))
    parts.append(_text(left + 16, row, f"prefill {prefill_s * 1e3:.0f} ms: {per_prompt:.1f} ms a prompt token"))
    parts.append(_bar(left, row + 12, 10, 10, COLOURS["decode"]))
    parts.append(_text(left + 16, row + 22, f"decode {decode_s * 1e3:.0f} ms: {per_new:.1f} ms a new token"))
    parts.append(_text(left, row + 46, f"{total_s:.2f} s in all; {share:.0f} % of it is prefill. {note}".strip()))
    return f'<svg viewBox="0 0 440 196" width="440" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, words: str, *, size: int = 15, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-family="sans-serif" fill="#1a1a1a" '
        f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
    )
