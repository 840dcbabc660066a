"""Reads images as inputs of a network: scaled, cropped, normalised, and in the network's layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, dims_text
from tilewright.service.quantize.errors import QuantizeError, require

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""File name suffixes of images."""


class ImageLayout(StrEnum):
    NCHW = "nchw"
    NHWC = "nhwc"


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The normalisation of images that a network was trained with, and the layout of its input.

    A pixel from 0 to 255 becomes `(pixel / 255 - mean) / std`. `mean` and `std` have one number for
    all channels, or one per channel.

    Raises:
        QuantizeError: if a number is not finite, or a standard deviation is not above 0.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: ImageLayout = ImageLayout.NCHW

    def __post_init__(self) -> None:
        if not np.isfinite(self.mean).all():
            raise QuantizeError(f"--mean {_listed(self.mean)}: a mean is a number")
        if not (np.isfinite(self.std).all() and min(self.std) > 0):
            raise QuantizeError(f"--std {_listed(self.std)}: a deviation is a number above 0")


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas: (0.485, 0.456) for "0.485,0.456".

    Raises:
        QuantizeError: if a part of the text is not a number.
    """
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise QuantizeError(f"{option} '{text}': expected numbers with commas") from error


def read_image(path: Path, dims: Dims, options: ImageOptions) -> Array:
    """Read an image as a float32 batch of one image.

    The image is scaled so that it covers the height and width of the network's input, and its
    centre is cropped to this size.

    Args:
        path: the file of the image.
        dims: the dimensions of the network's input.
        options: the normalisation and the layout.

    Raises:
        QuantizeError: if the file is not an image, or the input does not take images.
    """
    require("PIL")
    from PIL import Image, ImageOps, UnidentifiedImageError

    order = options.layout.value
    sizes = dict(zip(order, dims, strict=True)) if len(dims) == 4 else {}
    channels, height, width = (sizes.get(name) for name in "chw")
    if channels not in (1, 3) or not isinstance(height, int) or not isinstance(width, int):
        raise QuantizeError(
            f"images are for an input of 1 or 3 channels and a known size in the order "
            f"{order.upper()}, this one is {dims_text(dims)}: see --layout and --dim"
        )
    for option, numbers in (("--mean", options.mean), ("--std", options.std)):
        if len(numbers) not in (1, channels):
            raise QuantizeError(f"{option} {_listed(numbers)}: the input has {channels} channels")
    try:
        with Image.open(path) as image:
            whole = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
            cut = ImageOps.fit(whole, (width, height), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise QuantizeError(f"'{path}' cannot be read as an image: {error}") from error
    pixels = np.asarray(cut, np.float32).reshape(1, height, width, channels)
    scaled = (pixels / 255 - np.array(options.mean)) / np.array(options.std)
    if options.layout is ImageLayout.NCHW:
        scaled = scaled.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(scaled, np.float32)


def _listed(numbers: tuple[float, ...]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
