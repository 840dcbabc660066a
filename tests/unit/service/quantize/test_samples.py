"""Samples from files: the accepted forms, and one sentence for each error."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.images import ImageLayout, ImageOptions, parse_numbers, read_image
from tilewright.service.quantize.samples import (
    Input,
    Samples,
    model_inputs,
    random_samples,
    read_samples,
    split,
)

PLAIN = ImageOptions()
FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)


def read(path: Path, *inputs: Input) -> Samples:
    return read_samples(path, inputs or (Input("x", FLOAT, (2, 3)),), PLAIN, {})


def archive(folder: Path, name: str = "a.npz", **arrays: object) -> Path:
    path = folder / name
    np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})
    return path


@pytest.mark.parametrize(
    ("count", "calibration", "held"),
    [(1, [0], [0]), (2, [0], [1]), (3, [0, 1], [2]), (9, [0, 1, 2, 4, 5, 6, 8], [3, 7])],
)
def test_one_of_four_is_held_out(count: int, calibration: list[int], held: list[int]) -> None:
    samples = split([{"x": np.array(i)} for i in range(count)], {}, "here")
    assert [int(s["x"]) for s in samples.calibration] == calibration
    assert [int(s["x"]) for s in samples.held_out] == held
    assert samples.seen is (count == 1)


def test_a_file_is_one_sample_or_many(tmp_path: Path) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    assert read(archive(tmp_path, x=rows[:2])).seen
    many = read(archive(tmp_path, x=rows))
    assert len(many.calibration) == 3
    np.testing.assert_array_equal(many.held_out[0]["x"], rows[6:])


def test_inputs_are_cut_together_or_not_at_all(tmp_path: Path) -> None:
    inputs = Input("x", FLOAT, (1, 3)), Input("n", INT, (1,))
    path = archive(tmp_path, x=np.zeros((4, 3), np.float32), n=np.arange(4))
    samples = read(path, *inputs)
    assert [int(s["n"][0]) for s in (*samples.calibration, *samples.held_out)] == [0, 1, 2, 3]
    with pytest.raises(QuantizeError, match=r"'x' has shape \(4, 3\), the model takes \(1, 3\)"):
        read(archive(tmp_path, x=np.zeros((4, 3), np.float32), n=np.arange(3)), *inputs)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for index in (2, 0, 1):
        archive(tmp_path, f"{index}.npz", x=np.full((2, 3), index))
    (tmp_path / "notes.txt").write_text("not a sample")
    samples = read(tmp_path)
    assert [int(s["x"][0, 0]) for s in (*samples.calibration, *samples.held_out)] == [0, 1, 2]
    assert samples.origin == str(tmp_path)


def test_names_of_dimensions_get_the_sizes_of_the_samples(tmp_path: Path) -> None:
    one = Input("x", FLOAT, ("batch", 3))
    archive(tmp_path, "a.npz", x=np.zeros((5, 3)))
    assert read(tmp_path, one).dims == {"batch": 5}
    assert read_samples(tmp_path, (one,), PLAIN, {"other": 1}).dims == {"other": 1, "batch": 5}
    archive(tmp_path, "b.npz", x=np.zeros((4, 3)))
    with pytest.raises(QuantizeError, match=r"dimension 'batch' is 4 in .*b\.npz' and 5 in .*a\."):
        read(tmp_path, one)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": np.zeros((2, 3))}, "the model has no input 'y', it has 'x'"),
        ({}, "there is no array for input 'x'"),
        ({"x": np.zeros((2, 4))}, r"shape \(2, 4\), the model takes \(2, 3\)"),
        ({"x": np.zeros(())}, r"shape \(\)"),
        ({"x": np.zeros((0, 3))}, r"shape \(0, 3\)"),
        ({"x": np.full((2, 3), np.nan)}, "holds NaN, infinity"),
        ({"x": np.full((2, 3), np.inf)}, "holds NaN, infinity"),
        ({"x": np.full((2, 3), 1e300)}, "beyond the range of float32"),
        ({"x": np.full((2, 3), "text")}, "holds <U4, the model takes float32"),
        ({"x": np.zeros((2, 3), complex)}, "holds complex128"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_arrays_that_the_model_does_not_take(
    tmp_path: Path, arrays: dict[str, object], sentence: str
) -> None:
    with pytest.raises(QuantizeError, match=sentence):
        read(archive(tmp_path, **arrays))


def test_integers_are_taken_where_they_fit(tmp_path: Path) -> None:
    index = Input("x", INT, (2,))
    assert read(archive(tmp_path, x=[1, 2]), index).held_out[0]["x"].dtype == INT
    with pytest.raises(QuantizeError, match="values beyond the range of int32"):
        read(archive(tmp_path, x=[1, 1 << 40]), index)
    with pytest.raises(QuantizeError, match="holds float64, the model takes int32"):
        read(archive(tmp_path, x=[1.0, 2.0]), index)


def test_places_without_samples(tmp_path: Path) -> None:
    with pytest.raises(QuantizeError, match="no such file"):
        read(tmp_path / "away")
    with pytest.raises(QuantizeError, match="holds neither"):
        read(tmp_path)
    plain = tmp_path / "plain.npz"
    plain.write_text("no archive")
    with pytest.raises(QuantizeError, match=r"is not an \.npz file"):
        read(plain)


def test_drawn_samples_need_sizes() -> None:
    inputs = Input("x", FLOAT, (2, 3)), Input("n", INT, (4,))
    samples = random_samples(inputs, {"batch": 2})
    assert samples.origin == "drawn" and samples.dims == {"batch": 2}
    assert len(samples.calibration) == 12 and len(samples.held_out) == 4
    assert not np.array_equal(samples.calibration[0]["x"], samples.calibration[1]["x"])
    assert set(np.unique(samples.held_out[0]["n"])) <= {0, 1}
    indices = [s["n"] for s in random_samples(inputs, {}, {"n": (0, 9)}).calibration]
    assert set(np.unique(indices)) == set(range(9))
    with pytest.raises(QuantizeError, match="dimension 'batch' has no size"):
        random_samples([Input("x", FLOAT, ("batch", 3))], {})


def test_inputs_are_tensors_of_numbers_or_texts() -> None:
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("text", TensorProto.STRING, [2]),
        helper.make_tensor_value_info("filled", TensorProto.STRING, [2]),
    ]
    graph = helper.make_graph([], "none", ports, [])
    assert model_inputs(graph, {"x": (2,)}) == (Input("x", FLOAT, (2,)),)
    (_, text) = model_inputs(graph, {"x": (2,), "text": (2,)})
    assert text.dtype == object
    ports[1].type.tensor_type.elem_type = TensorProto.COMPLEX64
    graph = helper.make_graph([], "none", ports, [])
    with pytest.raises(QuantizeError, match="input 'text' holds complex64"):
        model_inputs(graph, {"x": (2,), "text": (2,)})


def picture(folder: Path, name: str, color: object = (255, 0, 51), mode: str = "RGB") -> Path:
    path = folder / name
    Image.new(mode, (20, 10), color).save(path)  # type: ignore[arg-type]
    return path


def test_images_are_cut_and_scaled(tmp_path: Path) -> None:
    path = picture(tmp_path, "a.png")
    options = ImageOptions((0.5, 0.0, 0.1), (2.0, 1.0, 0.1))
    array = read_image(path, ("batch", 3, 4, 6), options)
    assert array.shape == (1, 3, 4, 6) and array.dtype == np.float32
    np.testing.assert_allclose(array[0, :, 0, 0], [0.25, 0.0, 1.0], rtol=1e-6)
    last = read_image(path, (1, 4, 6, 3), ImageOptions(layout=ImageLayout.NHWC))
    np.testing.assert_allclose(last[0, 1, 2], [1.0, 0.0, 0.2], rtol=1e-6)
    grey = picture(tmp_path, "b.png", 51, "L")
    np.testing.assert_allclose(read_image(grey, (1, 1, 2, 2), PLAIN), np.full((1, 1, 2, 2), 0.2))


def test_the_middle_of_an_image_is_kept(tmp_path: Path) -> None:
    wide = Image.new("L", (30, 10), 0)
    wide.paste(255, (10, 0, 20, 10))
    wide.save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", (1, 1, 10, 10), PLAIN).min() == 1.0


def test_a_folder_of_images(tmp_path: Path) -> None:
    for name in ("a.png", "b.JPG", "c.bmp"):
        picture(tmp_path, name)
    one = Input("x", FLOAT, ("batch", 3, 4, 4))
    samples = read(tmp_path, one)
    assert len(samples.calibration) == 2 and samples.dims == {"batch": 1}
    with pytest.raises(QuantizeError, match="a model of one input, this one has 'x', 'n'"):
        read(tmp_path, one, Input("n", INT, (1,)))
    archive(tmp_path, x=np.zeros((1, 3, 4, 4)))
    with pytest.raises(QuantizeError, match=r"holds \.npz files and images"):
        read(tmp_path, one)


@pytest.mark.parametrize(
    "dims", [(1, 4, 3, 3), (1, 3, "h", 4), (3, 4, 4), (1, 2, 4, 4), ("n", 4, 4, 3)]
)
def test_inputs_that_take_no_image(tmp_path: Path, dims: tuple[int | str, ...]) -> None:
    with pytest.raises(QuantizeError, match="in the order NCHW, this one is"):
        read_image(picture(tmp_path, "a.png"), dims, PLAIN)


def test_the_extra_is_named_where_pillow_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = picture(tmp_path, "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(QuantizeError, match=r"needs 'PIL' .*tilewright\[quantize\]'"):
        read_image(path, (1, 3, 4, 4), PLAIN)


def test_damaged_images_and_numbers(tmp_path: Path) -> None:
    damaged = tmp_path / "a.png"
    damaged.write_bytes(picture(tmp_path, "b.png").read_bytes()[:40])
    with pytest.raises(QuantizeError, match=r"a\.png' cannot be read as an image"):
        read_image(damaged, (1, 3, 4, 4), PLAIN)
    with pytest.raises(QuantizeError, match="the input has 3 channels"):
        read_image(tmp_path / "b.png", (1, 3, 4, 4), ImageOptions((0.1, 0.2)))
    assert parse_numbers("--mean", "0.5, 1") == (0.5, 1.0)
    for text in ("", "a", "1,,2"):
        with pytest.raises(QuantizeError, match="expected numbers with commas"):
            parse_numbers("--mean", text)
    with pytest.raises(QuantizeError, match="--mean nan"):
        ImageOptions(mean=(float("nan"),))
    for number in (0.0, -1.0, float("inf")):
        with pytest.raises(QuantizeError, match="above 0"):
            ImageOptions(std=(number,))
