"""Arrays in .npz files: every name, every damage, and no half-written file."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tilewright.service.arrays import ArraysError, load_arrays, save_arrays


def test_arrays_of_any_name_are_saved(tmp_path: Path) -> None:
    """`numpy.savez` has no place for an array called 'file'."""
    path = tmp_path / "o.npz"
    arrays = {
        "file": np.arange(3),
        "allow_pickle": np.float32(2)[...],
        "/a/..": np.ones((2, 2), "<f2"),
        "выход": np.zeros((0, 4), bool),
    }
    save_arrays(path, arrays.items())
    with np.load(path) as found:
        assert {k: (v.dtype, v.shape) for k, v in found.items()} == {
            k: (v.dtype, v.shape) for k, v in arrays.items()
        }
    for name, array in load_arrays(path).items():
        np.testing.assert_array_equal(array, arrays[name])


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    save_arrays(path, [("x", np.ones(2))])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Object arrays"):
        save_arrays(path, [("x", np.ones(9)), ("y", np.array([{}], object))])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        save_arrays(Path("/dev/full"), [("x", np.ones(2))])
    assert caught.value.filename == "/dev/full"


def _archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def test_what_holds_no_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "i.npz"
    for data in (b"", b"no archive", _npy(np.ones(3)), bytes(range(256))):
        path.write_bytes(data)
        with pytest.raises(ArraysError, match=r"not an .npz file: it is not a zip archive"):
            load_arrays(path)
    _archive(path, {"x.npy": _npy(np.ones(3)), "a.txt": b"text"})
    with pytest.raises(ArraysError, match=r"i.npz': 'a.txt' is not an array"):
        load_arrays(path)
    _archive(path, {"x.npy": _npy(np.ones(3))[:-4]})
    with pytest.raises(ArraysError, match=r"'x' is damaged"):
        load_arrays(path)
    _archive(path, {"x.npy": _npy(np.array([{}], object))})
    with pytest.raises(ArraysError, match=r"'x' .*holds Python objects"):
        load_arrays(path)
    whole = _archive(path, {"x.npy": _npy(np.ones(300))}).read_bytes()
    path.write_bytes(whole[:1000] + b"damage" + whole[1006:])
    with pytest.raises(ArraysError, match=r"'x' is damaged.*CRC"):
        load_arrays(path)


def test_a_header_that_promises_terabytes_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (10**7, 10**7)}
    np.lib.format.write_array_header_1_0(header, shape)
    path = _archive(tmp_path / "i.npz", {"x.npy": header.getvalue() + bytes(1000)})
    with pytest.raises(ArraysError, match=r"'x' does not fit into memory"):
        load_arrays(path)
