"""QR codes as drawings that a strict policy lets through: a path, no style, no image."""

from __future__ import annotations

from dataclasses import dataclass

BORDER = 4
"""Fields that must stay light around a code, for cameras to find it."""


@dataclass(frozen=True, slots=True)
class QrCode:
    """`path` draws the dark fields, one unit each, in a square of `size` with its border."""

    size: int
    path: str


def qr_code(text: str) -> QrCode:
    """The code of a text, which stays readable with a seventh of it hidden.

    Raises:
        ValueError: for a text of more than 2,331 bytes.
    """
    import segno

    code = segno.make_qr(text, error="m")
    rows = [list(row) for row in code.matrix_iter(scale=1, border=BORDER)]
    path = []
    for y, row in enumerate(rows):
        x = 0
        while x < len(row):
            run = 1
            while x + run < len(row) and row[x + run] == row[x]:
                run += 1
            if row[x]:
                path.append(f"M{x} {y}h{run}v1h-{run}z")
            x += run
    return QrCode(len(rows), "".join(path))
