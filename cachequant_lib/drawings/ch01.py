"""Drawings of chapter 1, Two phases, one clock."""

from collections.abc import Sequence

from cachequant_lib.drawings.canvas import BOLD, INK, MIDDLE, WIDTH, canvas, number, path, text

__all__ = ["PHASES", "timeline"]

#: The colours of the two phases. No number format has them.
PHASES = {"prefill": "#c48a00", "decode": "#33475b"}


def timeline(prefill_s: float, step_s: Sequence[float], prompt_tokens: int, span_s: float) -> str:
    """Draw one request on a time axis: the prefill as one bar, then a bar for each decode step.

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

    Returns
    -------
    str
        SVG text.
    """
    left, top, tall = 12, 34, 40
    unit, axis = (WIDTH - 2 * left) / span_s, top + tall + 6
    decode_s, edge = sum(step_s), left + prefill_s * unit
    gaps, x = [], edge
    for seconds in step_s[:-1]:
        x += seconds * unit
        gaps.append(f"M{number(x)} {top}v{tall}")
    tick = next(t for t in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 1e9) if span_s / t <= 6)
    marks = [(n * tick, left + n * tick * unit) for n in range(int(span_s / tick + 1e-9) + 1)]
    line = f"M{left} {axis}H{WIDTH - left}" + "".join(f"M{number(x)} {axis}v4" for _, x in marks)
    total = f"{prompt_tokens} prompt tokens, {len(step_s) + 1} new ones: {prefill_s + decode_s:.2f} s"
    rows = (
        ("prefill", prefill_s, prefill_s / prompt_tokens, "prompt"),
        ("decode", decode_s, decode_s / len(step_s), "new"),
    )
    parts = [
        text(left, 20, total, BOLD),
        _bar(left, top, edge - left, tall, PHASES["prefill"]),
        _bar(edge, top, decode_s * unit, tall, PHASES["decode"]),
        path("".join(gaps), "#fff", 0.6),
        path(line, INK),
        *(text(number(x), axis + 17, f"{t:g} s", MIDDLE if t else "") for t, x in marks),
        text(left, axis + 84, f"{prefill_s / (prefill_s + decode_s):.0%} of the time is prefill"),
    ]
    for i, (name, seconds, each, which) in enumerate(rows):
        y = axis + 42 + 20 * i
        parts.append(_bar(left, y - 10, 10, 10, PHASES[name]))
        parts.append(text(left + 16, y, f"{name} {seconds * 1e3:,.0f} ms: {each * 1e3:.2f} ms a {which} token"))
    return canvas(axis + 94, parts)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<rect x='{number(x)}' y='{number(y)}' width='{number(width)}' height='{number(height)}' fill='{colour}'/>"
