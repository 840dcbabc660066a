"""PyTorch's modules through the backend of `torch.compile` and through `export`.

Skipped where PyTorch is not installed, as it is not where CI runs.
"""

from __future__ import annotations

import math
import threading
import tomllib
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.errors import ArtifactError, InvalidArgumentError, ModelWarning

ROOT = Path(__file__).parents[2]

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from compiler import compile_model, load_artifact  # noqa: E402
from compiler.driver import compile_with  # noqa: E402
from compiler.torch import export, graph_function, tilewright  # noqa: E402
from compiler.torch.translation import rules  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No graph of another test, an own folder of kept models, and every warning an error."""
    monkeypatch.setenv("TILEWRIGHT_KEPT_FOLDER", str(tmp_path / "kept"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are compiled, or loaded."""
    found: list[Any] = []

    class Counted(graph_function.KeptModels):
        def compile(self, model: Any, options: Any) -> Any:
            found.append(super().compile(model, options))
            return found[-1]

    monkeypatch.setattr(graph_function, "KeptModels", Counted)
    return found


def close(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5)
        assert found.shape == wanted.shape
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def same(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """The function, compiled, gives what it gives."""
    compiled = torch.compile(function, backend=tilewright, **options)
    close(compiled(*args), function(*args))
    return compiled


X = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
N = torch.arange(24).reshape(2, 3, 4) - 7
IMAGE = torch.linspace(-1, 1, 2 * 4 * 8 * 8).sin().reshape(2, 4, 8, 8)
MASK = X > 0.5
WHOLE = torch.tensor([1.0, -1.0, 0.0, 6.0])
SLOPES = torch.tensor([0.1, 0.2, 0.3])
NONE = torch.zeros(0, 3)

FUNCTIONS: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: (X + N) * 2 - X / 3 + torch.add(X, X, alpha=3) + (1 - X),
    "divisions": lambda: (
        N // 3,
        N % 3,
        torch.div(N, 4, rounding_mode="trunc"),
        torch.div(X, 0.7, rounding_mode="floor"),
        X % 0.7,
        N / 4,
        # 1 by 0.1 leaves almost 0.1, and by an infinite number itself
        torch.floor_divide(WHOLE, 0.1),
        WHOLE % 0.1,
        WHOLE % -0.3,
        WHOLE % math.inf,
        WHOLE // math.inf,
        (WHOLE + 2) // 0.0,
    ),
    "comparisons": lambda: (X > 0, N == 3, N != 3, X <= N, N > 2.5, (N > 0) == MASK),
    "logic": lambda: (MASK & (N > 0), MASK | ~MASK, MASK ^ (X > 1), N & 3, N | 4, N ^ 5),
    "truths": lambda: (MASK + (X > 1), MASK * (X > 1), torch.maximum(MASK, X > 1)),
    "unary": lambda: (X.exp(), X.sin(), X.abs().sqrt(), X.floor(), X.sign(), -X, N.abs()),
    "powers": lambda: (X**2, X**3, X.abs() ** 0.5, (X.abs() + 1).rsqrt(), 2.0**X),
    "activations": lambda: (
        functional.gelu(X),
        functional.gelu(X, approximate="tanh"),
        functional.silu(X),
        functional.hardswish(X),
        functional.hardsigmoid(X),
        functional.leaky_relu(X, 0.2),
        functional.elu(X),
        functional.mish(X),
        functional.softplus(X),
        functional.softplus(X, threshold=1),
        functional.prelu(X, SLOPES[:1]),
        functional.prelu(X, SLOPES),
        functional.relu6(X),
    ),
    "bounds": lambda: (X.clamp(-1, 1), X.clamp(min=0), N.clamp(max=4), torch.maximum(X, X * 2)),
    "choices": lambda: (
        torch.where(MASK, X, 0.0),
        X.masked_fill(MASK, -1),
        torch.where(MASK, N, X),
    ),
    "types": lambda: (X.int(), N.float(), MASK.float(), X.double() + 1, N.bool()),
    "views": lambda: (
        X.view(6, 4),
        X.permute(2, 0, 1),
        X.transpose(0, 1).reshape(-1),
        X[:, None].squeeze(1),
        X.flatten(1),
        X[0].t(),
    ),
    "parts": lambda: (X[:, 1:], X[1, ..., -1], X[..., ::2], *X.split(2, 1), *X.unbind(1)),
    "joins": lambda: (torch.cat([X, X * 2], 1), torch.stack([X, X], -1), X.repeat(2, 1, 3)),
    "turns": lambda: (X.flip(1), X.roll(1, 2), X.roll((1, -1), (0, 1)), X.expand(5, 2, 3, 4)),
    "borders": lambda: (
        functional.pad(X, (1, 2, 0, 1)),
        functional.pad(X, (1, 1), mode="reflect"),
        functional.pad(X, (1, 1), mode="replicate"),
        X.tril(),
        X.triu(1),
    ),
    "sums": lambda: (
        X.sum(),
        X.mean(1),
        X.amax((0, 2), keepdim=True),
        X.max(1),
        X.argmin(2),
        X.var(1),
        X.prod(2),
        N.sum(0),
        MASK.any(1),
        MASK.all(),
        X.cumsum(1),
        X.norm(dim=1),
    ),
    "nothing": lambda: (NONE.any(), NONE.any(0), NONE.all(0), NONE.sum(0)),
    "orders": lambda: (X.topk(2), X.sort(descending=True), X.argmax()),
    "lookups": lambda: (
        X[:, torch.tensor([2, 0])],
        X[torch.tensor([[1], [0]]), torch.tensor([0, 2])],
        X[:, torch.tensor([2, 0]), torch.tensor([1, 3])],
        X[torch.tensor([1, 0]), :, torch.tensor([1, 3])],
        X.gather(2, N.abs() % 4),
        X.index_select(1, torch.tensor([1, 1])),
    ),
    "writes": lambda: (
        X.index_put((torch.tensor([0, 1]), torch.tensor([2, 0])), torch.ones(2, 4)),
        X.scatter(1, N.abs() % 3, X),
        torch.slice_scatter(X, X[:, :1] * 0, 1, 1, 2),
        torch.select_scatter(X, X[0] * 0, 0, 1),
    ),
    "made": lambda: (
        X + torch.arange(4),
        X + torch.arange(1, 9, 2),
        X * torch.full((4,), 2.0),
        X + torch.ones_like(X),
        X[0] @ torch.eye(4),
    ),
    "products": lambda: (
        X @ X.transpose(1, 2),
        X[0] @ X[1].t(),
        torch.baddbmm(X @ X.mT, X, X.mT, beta=0.5, alpha=2),
        torch.addmm(X[0, :, :3], X[0], X[1].t(), beta=2, alpha=0.5),
        torch.addmm(X[0, :, :3] * math.nan, X[0], X[1].t(), beta=0),
        X[0] @ X[0, 0],
        torch.einsum("bij,bkj->bik", X, X),
    ),
    "softmax": lambda: (X.softmax(-1), X.log_softmax(1), X.double().softmax(0)),
    "normal": lambda: (
        functional.layer_norm(X, (4,)),
        functional.layer_norm(X, (3, 4), torch.ones(3, 4) * 2, torch.ones(3, 4)),
        functional.group_norm(IMAGE, 2),
        functional.rms_norm(X, (4,)),
    ),
    "images": lambda: (
        functional.max_pool2d(IMAGE, 3, 2, 1),
        functional.avg_pool2d(IMAGE, 2),
        functional.avg_pool2d(IMAGE, 3, 2, 1, count_include_pad=False),
        functional.adaptive_avg_pool2d(IMAGE, 1),
        functional.adaptive_avg_pool2d(IMAGE, 4),
        functional.interpolate(IMAGE, scale_factor=2),
        functional.interpolate(IMAGE, size=(12, 20), mode="bilinear"),
        functional.interpolate(IMAGE, size=(15, 15), mode="bilinear", align_corners=True),
        functional.pixel_shuffle(IMAGE, 2),
    ),
    "convolutions": lambda: (
        functional.conv2d(IMAGE, IMAGE[:, :, :3, :3], padding=1, stride=2),
        functional.conv2d(IMAGE, IMAGE[:1, :1, :3, :3].expand(4, 1, 3, 3), groups=4),
        functional.conv1d(IMAGE[0], IMAGE[0, :, :, :3], padding=2, dilation=2),
        functional.conv_transpose2d(IMAGE, IMAGE[:, :, :2, :2].repeat(2, 1, 1, 1), stride=2),
    ),
    "attention": lambda: (
        functional.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE),
        functional.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, is_causal=True),
        functional.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, IMAGE[:, :1], scale=0.5),
        functional.scaled_dot_product_attention(IMAGE, IMAGE, IMAGE, IMAGE > 0),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_give_what_pytorch_gives(name: str, made: list[Any]) -> None:
    # what is given as a global is an argument of the graph
    same(FUNCTIONS[name])
    assert len(made) == 1


class Small(nn.Module):
    """A table, a layer over tokens, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: Any) -> Any:
        return self.norm(functional.gelu(self.layer(self.table(ids))))


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


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


def test_numbers_that_a_type_does_not_hold_are_compared_by_pytorch() -> None:
    with pytest.warns(ModelWarning, match="-1 as torch.uint8"):
        same(lambda x: x > -1, torch.tensor([3, 250], dtype=torch.uint8))


def test_weights_that_are_written_to_are_compiled_again(made: list[Any]) -> None:
    model = Small().eval()
    compiled = same(model, IDS)
    model.layer.weight.mul_(2)
    close(compiled(IDS), model(IDS))
    model.layer.weight.data = torch.randn(8, 8)
    close(compiled(IDS), model(IDS))
    model.load_state_dict(Small().state_dict())
    close(compiled(IDS), model(IDS))
    assert len(made) == 4


def test_a_table_is_read_where_it_lies(made: list[Any]) -> None:
    model = Small().eval()
    compiled = same(model, IDS)
    model.table.weight.data.mul_(2)  # nobody counts that
    close(compiled(IDS), model(IDS))
    assert len(made) == 1
    assert "(10, 8)" in [str(tuple(port.shape)) for port in made[0].inputs]


def test_weights_that_change_all_the_time_are_not_compiled_in(made: list[Any]) -> None:
    model = nn.Linear(4, 4).eval()
    compiled = same(model, X)
    with pytest.warns(ModelWarning, match="its weights were written to 9 times"):
        for _ in range(12):
            model.weight.add_(0.1)
            close(compiled(X), model(X))
    assert len(made) == 1 + graph_function.MOST_CHANGES


def test_inference_tensors_are_inputs(made: list[Any]) -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4).eval()
        compiled = torch.compile(model, backend=tilewright)
        close(compiled(X), model(X))
        model.weight.mul_(2)  # an inference tensor counts no changes
        close(compiled(X), model(X))
    assert len(made) == 1


def test_layers_of_one_graph_have_programs_of_their_own(made: list[Any]) -> None:
    layers = [Small().eval() for _ in range(3)]
    wanted = [layer(IDS) for layer in layers]
    for layer in layers:
        layer.compile(backend=tilewright)
    for _ in range(2):
        for layer, each in zip(layers, wanted, strict=True):
            close(layer(IDS), each)
    assert len(made) == 3


def test_buffers_and_arguments_are_written_to(made: list[Any]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum((0, 1)))
            x.mul_(2)
            return x[0], self.seen * 2

    model, other = Counting(), Counting()
    compiled = torch.compile(model, backend=tilewright)
    for _ in range(2):
        mine, theirs = X.clone(), X.clone()
        close(compiled(mine), other(theirs))
        close(mine, theirs)
        close(model.seen, other.seen)
    assert len(made) == 1


def test_results_lie_as_pytorch_lays_them() -> None:
    compiled = same(lambda x: (x.transpose(0, 2) + 1).relu(), X)
    assert compiled(X).stride() == (X.transpose(0, 2) + 1).relu().stride()
    compiled(X).transpose(0, 2).view(-1)


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


def test_an_operator_without_a_rule_is_named(made: list[Any]) -> None:
    compiled = torch.compile(lambda x: torch.linalg.det(x @ x.mT), backend=tilewright)
    with pytest.warns(ModelWarning, match=r"eager mode.*aten\._linalg_det"):
        close(compiled(X), torch.linalg.det(X @ X.mT))
    close(compiled(X), torch.linalg.det(X @ X.mT))
    assert not made


def test_gradients_are_pytorchs(made: list[Any]) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=tilewright)
    with torch.enable_grad(), pytest.warns(ModelWarning, match="needs gradients"):
        compiled(X).sum().backward()
    assert model.weight.grad is not None
    assert not made
    close(compiled(X), model(X))  # under no_grad
    assert len(made) == 1


def test_another_process_would_load_it(made: list[Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for factor, entries in ((1.0, 1), (1.0, 1), (2.0, 2)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Linear(4, 4).eval()
        model.weight.mul_(factor)
        same(model, X)
        assert len(list(kept.iterdir())) == entries
    torch._dynamo.reset()
    same(nn.Linear(4, 4).eval(), X, options={"keep": False})
    assert len(list(kept.iterdir())) == 2


def test_a_tuner_works_while_the_untuned_code_serves(made: list[Any]) -> None:
    go = threading.Event()
    runs: list[Any] = []

    class Tuned:
        def __init__(self, program: Any) -> None:
            self.program = program

        def run(self, arrays: Any) -> Any:
            runs.append(arrays)
            return self.program.run(arrays)

    def tuner(model: Any, options: Any) -> Tuned:
        assert go.wait(30)
        assert options.threads == 1
        return Tuned(compile_with(model, options))

    model = nn.Linear(4, 4).eval()
    compiled = same(model, X, options={"tuner": tuner, "threads": 1})
    assert not runs
    go.set()
    (worker,) = [t for t in threading.enumerate() if t.name == "tilewright-tuner"]
    worker.join(30)
    close(compiled(X), model(X))
    assert len(runs) == 1
    assert len(made) == 1


def test_schedules_are_looked_up(made: list[Any]) -> None:
    asked = []

    class Nothing:
        def best(self, *key: Any) -> None:
            asked.append(key)

    same(nn.Linear(4, 4).eval(), X, options={"schedules": Nothing()})
    assert asked


def test_unknown_options_are_named() -> None:
    compiled = torch.compile(lambda x: x + 1, backend=tilewright, options={"thread": 2})
    with pytest.raises(Exception, match="has no option 'thread', known are threads, ") as raised:
        compiled(X)
    assert isinstance(raised.value.__cause__ or raised.value, InvalidArgumentError | Exception)


def test_a_module_is_exported(tmp_path: Path) -> None:
    model = Small().eval()
    rows = torch.export.Dim("rows", min=2, max=16)
    path = export(model, (IDS,), tmp_path / "m.onnx", dynamic_shapes={"ids": {0: rows}})
    compiled = compile_model(path, keep=False)
    assert compiled.output_names == ("output_0",)
    ids = torch.arange(15).reshape(5, 3) % 10
    close(torch.from_numpy(compiled.run({"ids": ids.numpy()})[0]), model(ids))


def test_a_module_is_exported_as_an_artifact(tmp_path: Path) -> None:
    model = Small().eval()
    folder = export(model, (IDS,), tmp_path / "made", output_names=["states"])
    artifact = load_artifact(folder)
    assert artifact.output_names == ("states",)
    close(torch.from_numpy(artifact.run({"ids": IDS.numpy()})[0]), model(IDS))
    with pytest.raises(ArtifactError, match="is there already"):
        export(model, (IDS,), folder)


def test_one_tensor_is_not_two_inputs(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x - 2 * y

    with pytest.raises(InvalidArgumentError, match="one tensor is given for two inputs"):
        export(Sum(), (X, X), tmp_path / "m.onnx")


def test_a_module_that_writes_is_not_exported(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen.add_(1)
            return x + self.seen

    with pytest.raises(Exception, match="writes to 'seen'"):
        export(Counting(), (X,), tmp_path / "m.onnx")


def test_the_entry_point_is_the_backend() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, name = groups["torch_dynamo_backends"]["tilewright"].split(":")
    assert getattr(import_module(module), name) is tilewright


def test_every_rule_is_of_an_operator_that_there_is() -> None:
    assert len(rules()) > 200
    assert all(isinstance(op, torch._ops.OpOverload) for op in rules())
    assert np.isfinite(len(rules()))
