"""Reads and writes named arrays in .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tilewright.service.files import replacing


class ArraysError(Exception):
    """A file is not a valid .npz file of arrays, or is too large; the message is one sentence."""


def load_arrays(
    path: Path, name: str | None = None, most_bytes: int | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name.

    Args:
        path: the file.
        name: the file's name in error messages; by default the path.
        most_bytes: the largest total size of the arrays; None for no limit.

    Raises:
        ArraysError: if the file is not an .npz file, exceeds the limit, or does not fit into
            memory.
        OSError: if the file cannot be read.
    """
    name = name or str(path)
    if not zipfile.is_zipfile(path):
        raise ArraysError(f"'{name}' is not an .npz file: it is not a zip archive")
    arrays = {}
    member = ""
    try:
        if most_bytes is not None:
            with zipfile.ZipFile(path) as packed:
                held = sum(each.file_size for each in packed.infolist())
            if held > most_bytes:
                raise ArraysError(
                    f"'{name}' holds {held} bytes of arrays, at most {most_bytes} fit"
                )
        with np.load(path, allow_pickle=False) as archive:
            for member in archive.files:
                array = archive[member]
                if not isinstance(array, np.ndarray):
                    raise ArraysError(f"'{name}': '{member}' is not an array")
                arrays[member] = array
    except MemoryError as error:
        raise ArraysError(f"'{name}': '{member}' does not fit into memory") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        what = f": '{member}' is damaged or holds Python objects" if member else ""
        raise ArraysError(f"'{name}' is not an .npz file of arrays{what}: {error}") from error
    return arrays


def save_arrays(path: Path, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write an .npz file. An existing file is replaced only when the new one is complete.

    `numpy.savez` is not used, because it takes the arrays as keyword arguments and therefore
    rejects an array named 'file'.

    Raises:
        OSError: if the file cannot be written; the error's attribute `filename` is `path`.
    """
    with replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
