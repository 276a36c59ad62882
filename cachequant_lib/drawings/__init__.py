"""Hand-drawn SVG figures: the sheet they are drawn on, and one file a chapter."""

from cachequant_lib.drawings.canvas import Figure

__all__ = ["Figure"]
