"""Writes the file of a quantised model."""

from __future__ import annotations

from pathlib import Path

import onnx

from tilewright.service.files import replacing
from tilewright.service.quantize.errors import QuantizeError


def check_place(path: Path, model: Path) -> None:
    """Check that the quantised model can be written to `path`.

    Raises QuantizeError if the path is a folder, its parent folder is missing, or it is the file of
    the float32 model.
    """
    if path.is_dir():
        raise QuantizeError(f"--output '{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise QuantizeError(f"--output '{path}': the folder '{path.parent}' does not exist")
    if path.exists() and path.samefile(model):
        raise QuantizeError(f"--output '{path}' is the model that is to be quantised")


def save_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model to a file. An existing file is replaced only when the new one is complete.

    Raises:
        OSError: if the file cannot be written; the error's attribute `filename` is `path`.
    """
    data = model.SerializeToString()
    with replacing(path) as file:
        file.write(data)
