"""Chapter 4's drawings: sound, legible, small; the pixels of a map are where the losses are."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from cachequant_lib.drawings import canvas, ch04

CALM = np.linspace(-0.3, 0.3, 8 * 128).reshape(8, 128)
MAPS = {
    "One scale": ch04.DamageMap(CALM, "the others: error 100 %, 1023 of 1023 became 0"),
    "BFP8": ch04.DamageMap(np.zeros((8, 128)), "nothing", 32),
}
FIGURES = {
    "damage": ch04.damage(CALM, (1, 2, 4, 5), MAPS, 0.11),
    "product": ch04.product(),
    "divergences": ch04.divergences({"a < b": (6e-5, 3e-3), "c": (1e-5, 0.1)}, ("as trained", "with the outlier")),
}
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.parametrize("drawn", FIGURES.values(), ids=FIGURES)
def test_figures_are_sound(drawn: str, drawn_well: Callable[[str, int], None]) -> None:
    drawn_well(drawn, 7_000)


def opened(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5), (1, 1), (8, 128)])
def test_pixels_read_back(shape: tuple[int, int]) -> None:
    levels = np.arange(np.prod(shape)).reshape(shape) % 6
    picture = opened(ch04.pixels(levels, ch04.HEAT))
    assert np.array_equal(np.asarray(picture), levels)
    reddish = np.asarray(picture.convert("RGB"))[..., 0]
    wanted = [int(colour[1:3], 16) for colour in ch04.HEAT]
    assert reddish.ravel().tolist() == [wanted[level] for level in levels.ravel()]


def test_a_larger_loss_is_never_lighter() -> None:
    shades = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in ch04.HEAT]
    assert shades == sorted(shades, reverse=True)
    assert len(ch04.HEAT) == len(ch04.GREYS) == len(ch04.LIMITS) + 1


def test_maps_show_losses_as_a_share_of_the_typical_weight() -> None:
    addresses = re.findall(r"href='(data:[^']*)'", FIGURES["damage"])
    weights, loud, silent = (np.asarray(opened(address)) for address in addresses)
    assert weights.shape == loud.shape == (8, 128)
    assert silent.max() == 0
    assert loud[0, 0] == 5  # a loss of 2.7 typical weights is beyond the last limit
    assert loud[3, 127] == 0
    assert weights[0, 0] == 2  # and a weight of 2.7 typical ones lies between 1 and 3
    assert FIGURES["damage"].count(canvas.ORANGE) == 1
