"""QR codes as SVG paths.

The dashboard's content security policy forbids inline styles and images from other sources. A path
needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass

BORDER = 4
"""Width of the light border around a QR code, in modules, the squares of the code. Cameras need the
border to find the code."""


@dataclass(frozen=True, slots=True)
class QrCode:
    """A QR code as an SVG path.

    Attributes:
        size: the width of the code with its border, in modules.
        path: the dark modules, each one unit wide.
    """

    size: int
    path: str


def qr_code(text: str) -> QrCode:
    """Return the QR code of a text. It stays readable if a seventh of its area is damaged.

    Raises:
        ValueError: if the text exceeds 2,331 bytes.
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
