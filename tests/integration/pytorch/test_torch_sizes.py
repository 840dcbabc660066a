"""Graphs of PyTorch with open sizes, in several parts, and the strides of results."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from tests.integration.pytorch.comparison import IDS, Small, X, close, same  # noqa: E402
from tilewright.compiler.bindings.torch import tilewright  # noqa: E402
from tilewright.compiler.errors import ModelWarning  # noqa: E402


def test_sizes_stay_open(made: list[Any]) -> None:
    model = Small().eval()
    compiled = same(model, IDS, dynamic=True)
    for rows, columns in ((3, 5), (7, 2)):
        ids = torch.arange(rows * columns).reshape(rows, columns) % 10
        close(compiled(ids), model(ids))
    assert len(made) == 1  # one program
    assert made[0].reason == ""
    assert not made[0].made


def test_bounds_of_dimensions_are_those_of_pytorch(made: list[Any]) -> None:
    ids = IDS.clone()
    torch._dynamo.mark_dynamic(ids, 1, min=2, max=64)
    same(Small().eval(), ids)
    (known,) = made[0].ranges.values()
    assert (known.low, known.high) == (2, 64)


def test_sizes_are_reckoned_with(made: list[Any]) -> None:
    def halves(x: Any, count: int) -> Any:
        rows = x.shape[0]
        return x.reshape(-1)[: rows // 2 * 3], x.new_ones(rows + 1), x * count, rows * 2

    compiled = torch.compile(halves, backend=tilewright, dynamic=True)
    for rows in (6, 9):
        x = torch.randn(rows, 4)
        close(compiled(x, 3)[:3], halves(x, 3)[:3])
        assert compiled(x, 3)[3] == rows * 2


def test_sizes_below_zero_are_rounded_down(made: list[Any]) -> None:
    def parts(x: Any) -> Any:
        rows = x.shape[0]
        return x[: -(-rows // 2)] * 2, x[(rows - 9) // 2 :] * 2

    compiled = torch.compile(parts, backend=tilewright, dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 4)
        close(compiled(x), parts(x))


def test_results_lie_as_pytorch_lays_them() -> None:
    compiled = same(lambda x: (x.transpose(0, 2) + 1).relu(), X)
    assert compiled(X).stride() == (X.transpose(0, 2) + 1).relu().stride()
    compiled(X).transpose(0, 2).view(-1)


def test_factors_are_open_numbers(made: list[Any]) -> None:
    def scaled(x: Any, count: int) -> Any:
        return torch.add(x, x, alpha=count), torch.baddbmm(x, x, x, beta=count), x.addcmul(x, x)

    compiled = torch.compile(scaled, backend=tilewright, dynamic=True)
    for size in (3, 5):
        x = torch.randn(2, size, size)
        close(compiled(x, size + 4), scaled(x, size + 4))
    assert len(made) == 1


def test_views_are_made_of_what_they_view(made: list[Any]) -> None:
    def views(x: Any, y: Any) -> Any:
        total = x + y[0]
        first, second = total.chunk(2)
        rows = x.shape[0]
        return x[1:], second, y.expand(rows, 4), total.t(), x, first, total[:, 2:], rows + 1

    compiled = torch.compile(views, backend=tilewright, dynamic=True)
    for rows in (6, 8):
        x, y = torch.randn(rows, 4), torch.randn(1, 4)
        found, wanted = compiled(x, y), views(x, y)
        close(found[:-1], wanted[:-1])
        assert found[-1] == wanted[-1]
        for mine, theirs in zip(found[:-1], wanted[:-1], strict=True):
            assert mine.stride() == theirs.stride()
        found[0].zero_()
        assert not x[1:].any() and found[4] is x
        found[3].zero_()
        assert not any(found[k].any() for k in (1, 5, 6))
    assert len(made) == 1 and len(made[0].output_names) == 1


def test_views_alone_are_pytorchs(made: list[Any]) -> None:
    compiled = same(lambda x: (x[1:], x.transpose(0, 1)), X)
    assert compiled(X)[0].data_ptr() == X[1:].data_ptr()
    assert not made


def test_strides_of_what_is_computed_are_its_own(made: list[Any]) -> None:
    def strided(x: Any) -> Any:
        turned = (x + 1).mT
        return turned, turned.as_strided((2, 2), (1, 4), 1)

    same(strided, X, dynamic=False)
    same(strided, X.mT, dynamic=False)


def test_graphs_break(made: list[Any]) -> None:
    def broken(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.relu() + 1

    same(broken, X)
    assert len(made) == 2


def test_bfloat16(made: list[Any]) -> None:
    model = nn.Linear(4, 4).bfloat16().eval()
    compiled = torch.compile(model, backend=tilewright)
    found = compiled(X.bfloat16())
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found, model(X.bfloat16()), rtol=0.02, atol=0.02)
    assert len(made) == 1


def written(x: Any, part: Any, place: Any) -> Any:
    whole = x.clone()
    whole[:, place] = part
    return whole


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.arange(0, x.shape[0], dtype=torch.float32), x.exp()),
        lambda x: (torch.arange(0.5, x.shape[0], 0.5), torch.arange(x.shape[0] / 2), x.exp()),
        lambda x: (torch.arange(x.shape[0], 0, -2.0), torch.arange(x.shape[1]).int(), x.exp()),
        lambda x: (torch.eye(x.shape[0]), torch.eye(x.shape[0], x.shape[1] + 2), x.exp()),
        lambda x: torch.slice_scatter(x, x[:-2] * 2, 0, 2),
        lambda x: torch.slice_scatter(x, x[:, 1:] * 2, 1, 0, x.shape[1] - 1),
        lambda x: torch.slice_scatter(x, x[:, -2:] * 2, 1, -2),
        lambda x: torch.slice_scatter(x, x[:, : (x.shape[1] + 1) // 3] * 2, 1, 1, None, 3),
        lambda x: (written(x, 0, -1), written(x, 1, slice(1, None)), written(x, x[:, 0], 2)),
        lambda x: written(x, 7, slice(0, None, 2)),
    ],
)
def test_positions_and_parts_of_open_sizes(function: Any, made: list[Any]) -> None:
    compiled = torch.compile(function, backend=tilewright, dynamic=True)
    for rows, columns in ((5, 8), (7, 11)):
        x = torch.randn(rows, columns)
        close(compiled(x), function(x))
    assert len(made) == 1  # one program, and no warning


def test_a_size_that_floating_point_may_round_is_pytorchs(made: list[Any]) -> None:
    def function(x: Any) -> Any:
        return torch.arange(0, x.shape[0], 0.1), x.exp()

    compiled = torch.compile(function, backend=tilewright, dynamic=True)
    x = torch.randn(7)
    with pytest.warns(ModelWarning, match=r"rest of it is compiled: aten\.arange.*the size Float"):
        close(compiled(x), function(x))
    assert len(made) == 1
