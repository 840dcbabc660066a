"""Graphs that PyTorch runs itself, and the warnings about them."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

from tilewright.compiler.errors import ModelWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.integration.pytorch.comparison import X, close, same  # noqa: E402
from tilewright.compiler.bindings.torch import graph_function, tilewright, translation  # noqa: E402


def test_a_graph_of_operators_without_a_rule_runs_in_pytorch(made: list[Any]) -> None:
    compiled = torch.compile(torch.linalg.det, backend=tilewright)
    square = X @ X.mT
    with pytest.warns(ModelWarning, match=r"a graph runs in .* eager mode.*aten\._linalg_det"):
        close(compiled(square), torch.linalg.det(square))
    close(compiled(square), torch.linalg.det(square))  # warns once
    assert not made


class Interrupted(nn.Module):
    """Layers around operators without a rule, one of them behind the other, and a parallel
    branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        before = self.first(x).relu()
        size = torch.linalg.det(before @ before.mT + torch.eye(3))
        between = before * size[:, None, None] + torch.lgamma(size).sum()
        after = self.second(torch.cat([between, before.softmax(-1)], 1))
        return after, size, before.mT, x.shape[0] * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_rest_of_a_graph_is_compiled(dynamic: bool, made: list[Any]) -> None:
    model = Interrupted()
    compiled = torch.compile(model, backend=tilewright, dynamic=dynamic)
    named = r"the rest of it is compiled: aten\._linalg_det\.default: it has no rule; aten\.lgamma"
    with pytest.warns(ModelWarning, match=named):
        close(compiled(X)[:3], model(X)[:3])
    assert len(made) == 2
    found = compiled(X)
    assert found[2].data_ptr() != X.data_ptr() and found[3] == 4
    if dynamic:
        more = torch.linspace(-2, 3, 60).reshape(5, 3, 4)
        close(compiled(more)[:3], model(more)[:3])
        assert compiled(more)[3] == 10
        assert len(made) == 2
    for weight in model.second.parameters():
        weight.mul_(2)
    close(compiled(X)[:3], model(X)[:3])
    assert len(made) == 3  # the other piece has its weights still


def test_random_numbers_of_pieces_come_in_order() -> None:
    def function(x: Any) -> Any:
        late = torch.rand_like(torch.lgamma(x).exp() + 1)
        return late, torch.rand_like(x)

    compiled = torch.compile(function, backend=tilewright)
    torch.manual_seed(1)
    wanted = function(X)
    torch.manual_seed(1)
    with pytest.warns(ModelWarning, match="the rest of it is compiled"):
        close(compiled(X), wanted)


def test_an_operator_that_the_compiler_refuses_is_cut_out(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(t: Any, node: Any, x: Any) -> Any:
        return t.op("NoSuchOperator", t.value(x))

    known = {**translation.rules(), torch.ops.aten.tanh.default: refused}
    monkeypatch.setattr(translation, "rules", lambda: known)
    compiled = torch.compile(lambda x: (x.relu() + 1).tanh() * 2, backend=tilewright)
    with pytest.warns(ModelWarning, match=r"rest of it is compiled: aten\.tanh.*NoSuchOperator"):
        close(compiled(X), (X.relu() + 1).tanh() * 2)
    close(compiled(X), (X.relu() + 1).tanh() * 2)
    assert len(made) == 2


def test_an_argument_that_nothing_compiled_reads_may_be_of_any_type(made: list[Any]) -> None:
    whole = torch.complex(X, X)
    compiled = torch.compile(lambda x, z: (x.exp(), z.sin()), backend=tilewright)
    with pytest.warns(
        ModelWarning, match=r"compiled: aten\.sin\.default: an argument of .*complex"
    ):
        close(compiled(X, whole), (X.exp(), whole.sin()))
    assert len(made) == 1


def test_gradients_are_pytorchs(made: list[Any]) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=tilewright)
    with torch.enable_grad(), pytest.warns(ModelWarning, match="needs gradients"):
        compiled(X).sum().backward()
    assert model.weight.grad is not None
    assert not made
    close(compiled(X), model(X))  # under no_grad
    assert len(made) == 1


def test_a_rule_that_fails_is_named_and_logged(
    made: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> str:
        raise ZeroDivisionError("a defect")

    known = {**translation.rules(), torch.ops.aten.tanh.default: broken}
    monkeypatch.setattr(translation, "rules", lambda: known)
    compiled = torch.compile(lambda x: x.tanh(), backend=tilewright)
    named = r"eager mode.*aten\.tanh\.default: its rule failed: ZeroDivisionError: a defect"
    with (
        caplog.at_level(logging.ERROR, "tilewright.torch"),
        pytest.warns(ModelWarning, match=named),
    ):
        close(compiled(X), X.tanh())
    (record,) = [each for each in caplog.records if each.name == "tilewright.torch"]
    assert "aten.tanh.default" in record.getMessage() and record.exc_info is not None
    close(compiled(X), X.tanh())  # warns once
    assert not made


class Program:
    """Gives other arrays than the program that it stands for."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def compile(self, *_: Any) -> Any:
        return self

    def run(self, arrays: Any) -> Any:
        return self._change(arrays[0] * 2)


def failed(array: Any) -> Any:
    raise RuntimeError("out of cores")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: [found[:1]], r"is torch.float32 \[1, 3, 4\], PyTorch traced torch.float32"),
        (
            lambda found: [found.astype("f8")],
            r"is torch.float64 .* traced torch.float32 \[2, 3, 4\]",
        ),
        (lambda found: [found[0]], r"is torch.float32 \[3, 4\]"),
        (lambda found: [], "IndexError"),
        (failed, "RuntimeError: out of cores"),
    ],
)
def test_a_result_that_pytorch_did_not_trace_is_given_to_nobody(
    change: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_function, "CompilationCache", lambda folder: Program(change))
    compiled = torch.compile(lambda x: x * 2, backend=tilewright)
    with pytest.warns(ModelWarning, match=f"eager mode.*{says}"):
        close(compiled(X), X * 2)
    close(compiled(X), X * 2)  # warns once


def test_open_dimensions_of_results_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_function, "CompilationCache", lambda folder: Program(lambda x: [x]))
    compiled = torch.compile(lambda x: x * 2, backend=tilewright, dynamic=True)
    for rows in (2, 5):
        close(compiled(X[:, :rows]), X[:, :rows] * 2)


def test_a_compiler_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __init__(self, *_: Any) -> None: ...

        def compile(self, *_: Any) -> Any:
            raise AssertionError("no register")

    monkeypatch.setattr(graph_function, "CompilationCache", Broken)
    with pytest.warns(ModelWarning, match="eager mode.*AssertionError: no register"):
        same(lambda x: x + 1, X)
    (record,) = [each for each in caplog.records if each.name == "tilewright.torch"]
    assert record.exc_info is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda at: functional.embedding(at, TABLE),
        lambda at: functional.embedding(at[:, None], TABLE),
        lambda at: TABLE[at],
        lambda at: TABLE[:, at],
        lambda at: TABLE.index_select(0, at),
        lambda at: TABLE.gather(0, at[:, None]),
        lambda at: TABLE.scatter(0, at[:, None], 1.0),
        lambda at: TABLE.index_put((at,), TABLE[:2]),
    ],
)
def test_positions_beyond_a_tensor_are_refused(function: Any, made: list[Any]) -> None:
    """As PyTorch refuses them, and the program serves the next call."""
    compiled = same(function, torch.tensor([0, 3]))
    for beyond in ([0, 4], [-5, 0], [1 << 62, 0]):
        at = torch.tensor(beyond)
        with pytest.raises((IndexError, RuntimeError)) as wanted:
            function(at)
        with pytest.raises(wanted.type, match="index"):
            compiled(at)
    close(compiled(torch.tensor([1, 2])), function(torch.tensor([1, 2])))
    assert len(made) == 1


TABLE = torch.arange(16.0).reshape(4, 4)


def test_positions_from_the_end_are_taken_where_pytorch_takes_them() -> None:
    at = torch.tensor([-1, -4])
    close(torch.compile(lambda at: TABLE[at], backend=tilewright)(at), TABLE[at])
    compiled = torch.compile(lambda at: functional.embedding(at, TABLE), backend=tilewright)
    with pytest.raises(IndexError):
        compiled(at)


def test_a_table_is_never_read_beyond(made: list[Any]) -> None:
    """Positions that are reckoned are not looked at before the run: the nearest row is read."""
    memory = torch.full((3, 4, 4), torch.nan)
    memory[1] = TABLE
    compiled = torch.compile(lambda t, at: functional.embedding(at * 2, t), backend=tilewright)
    at = torch.tensor([0, 1, 2, 7, -1, 1 << 60, -(1 << 60)])
    found = compiled(memory[1], at)
    assert len(made) == 1
    assert found[:2].equal(TABLE[[0, 2]])
    assert all(any(row.equal(one) for one in TABLE) for row in found)


def test_complex_numbers_that_no_rule_takes_are_pytorchs(made: list[Any]) -> None:
    whole = torch.complex(X, X)
    for function, given, named in (
        (lambda x: x.sin(), whole, r"aten\.sin\.default: an argument of torch\.complex64"),
        (lambda x: torch.fft.rfft(x), torch.ones(1, 130), r"aten\._fft_r2c\.default: along 130"),
        (lambda x: x == x.mT, whole[:, :, :3], r"aten\.eq\.Tensor"),
    ):
        torch._dynamo.reset()
        with pytest.warns(ModelWarning, match=f"eager mode.*{named}"):
            same(function, given)
    assert not made


@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_numbers_cross_the_border(dynamic: bool, made: list[Any]) -> None:
    """As arguments, also with the mark of a conjugate, as weights, and between pieces."""
    model = nn.Module()
    model.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))

    def function(x: Any, z: Any) -> Any:
        turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * model.turns
        return turned, torch.view_as_real(turned + z).flatten(-2), turned.sin() * z

    compiled = torch.compile(function, backend=tilewright, dynamic=dynamic)
    for rows in (3, 5) if dynamic else (3,):
        x, z = torch.randn(rows, 8), torch.randn(rows, 4, dtype=torch.complex64).conj()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "operators of a graph.*aten.sin", ModelWarning)
            found, wanted = compiled(x, z), function(x, z)
        close(found, wanted)
        assert found[0].is_complex()
    assert len(made) == 2
