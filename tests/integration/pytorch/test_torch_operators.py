"""The rules of PyTorch's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.compiler.errors import ModelWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.integration.pytorch.comparison import X, close, same  # noqa: E402
from tilewright.compiler.bindings.torch import tilewright  # noqa: E402
from tilewright.compiler.bindings.torch.translation import complex_rules, rules  # noqa: E402

N = torch.arange(24).reshape(2, 3, 4) - 7
IMAGE = torch.linspace(-1, 1, 2 * 4 * 8 * 8).sin().reshape(2, 4, 8, 8)
GRID = torch.linspace(-7, 8, 2 * 3 * 5 * 2).cos().reshape(2, 3, 5, 2) * 1.3
"""Places, some of them beyond the image."""
TRIANGLES = torch.linspace(-3, 4, 2 * 5 * 5).sin().reshape(2, 5, 5) * 0.5 + 2 * torch.eye(5)
"""The other triangle is not 0, and is not read."""
RIGHT = torch.linspace(-1, 1, 15).reshape(5, 3)
Z = torch.complex(X, X.flip(2).cos())
ENDLESS = torch.complex(torch.tensor([0, math.inf, 1]), torch.tensor([0, 1, -math.inf]))
MASK = X > 0.5
WHOLE = torch.tensor([1.0, -1.0, 0.0, 6.0])
SLOPES = torch.tensor([0.1, 0.2, 0.3])
NONE = torch.zeros(0, 3)
TRUTHS = torch.tensor([[True, True, False], [True, False, True], [False, True, False]])
PLACES = torch.tensor([[1, 1, 0], [1, 2, 2], [1, 0, 0]])
ENDS = torch.tensor([0.0, -0.0, 1.0, -0.5, math.inf, -math.inf, math.nan])


def put(where: Any, values: Any) -> Any:
    """A copy, written to."""
    whole = X.clone()
    whole[where] = values
    return whole


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "complex arithmetic": lambda: (
        Z + Z.conj() - 2 * Z / (Z + 1j),
        Z * X + X[:1] * Z[0] - (1 - 2j),
        torch.sub(X, Z, alpha=3) + Z[0, 0],
        X / Z,
        Z / 4 + N * Z,
        (Z.exp() * torch.polar(X.abs(), X)).angle(),
        (Z * 1e25).abs(),
        (Z * 1e-30).abs() * 1e30,
        ENDLESS.abs(),
        torch.view_as_real(Z),
        Z.real + Z.conj().imag,
        torch.rsub(Z, X, alpha=2) + Z.reciprocal(),
        (ENDS.angle(), N.angle()),
        torch.view_as_complex(IMAGE.unflatten(-1, (4, 2))),
    ),
    "complex parts": lambda: (
        torch.cat([Z, X, -Z], 1)[:, 1:5].transpose(0, 2),
        torch.where(MASK, Z, X).sum(1),
        put(1, Z[0].real) * Z.mean(-1, keepdim=True),
        torch.stack([Z, Z.conj()]).permute(3, 0, 2, 1).reshape(8, -1)[:, PLACES[0]],
        torch.zeros(2, 2, dtype=torch.complex64) + torch.full((2,), 1 - 1j),
        Z.to(torch.complex128).roll(1, 2).unbind(1),
        torch.complex((X - 0.5).relu(), (-X).relu()).to(torch.bool),
        Z @ Z.mT.conj(),
        (Z[0] @ Z[0, 1], Z[0, 0].dot(Z[0, 1]), Z.sum()),
        (torch.full_like(Z, 2, dtype=torch.float32), torch.full_like(Z, 2j)),
        torch.nn.functional.pad(Z, (1, 2), mode="reflect"),
        torch.nn.functional.pad(Z, (1, 2), mode="circular"),
        torch.nn.functional.pad(Z, (1, 0, 0, 2), value=0.5),
    ),
    "transforms": lambda: (
        *(torch.fft.fft(IMAGE, n, norm=norm) for n, norm in ((5, None), (8, "ortho"), (9, None))),
        torch.fft.rfft2(IMAGE, norm="forward"),
        torch.fft.fftn(Z, dim=(0, 2)).abs(),
        torch.fft.ifft(Z, dim=1),
        *(torch.fft.irfft(Z, n, norm="ortho") for n in (5, 6, 7, 9)),
        torch.fft.irfft2(torch.fft.rfft2(IMAGE) * 2, norm="ortho"),
        torch.stft(
            IMAGE.reshape(2, -1), 16, 4, window=torch.hann_window(16), return_complex=True
        ).abs(),
    ),
    "histograms": lambda: (
        torch.histc(X, 5),
        torch.histc(X, 7, -2, 3),
        torch.histc(ENDS, 4, -1, 1),  # elements on both borders; NaN and infinity are in none
        torch.histc(NONE, 3),
        torch.histc(SLOPES[:1], 3),
    ),
    "triangles": lambda: tuple(
        torch.linalg.solve_triangular(
            TRIANGLES, RIGHT if left else RIGHT.mT, upper=upper, left=left, unitriangular=ones
        )
        for upper in (False, True)
        for left in (False, True)
        for ones in (False, True)
    ),
    "grids": lambda: tuple(
        functional.grid_sample(IMAGE, GRID, mode, padding, align)
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (False, True)
    ),
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
    "truths at positions": lambda: (
        TRUTHS.scatter_add(0, PLACES, TRUTHS),
        TRUTHS.scatter(0, PLACES, TRUTHS, reduce="multiply"),
        TRUTHS[0].index_put((PLACES[0],), TRUTHS[1], accumulate=True),
        TRUTHS[0].index_add(0, PLACES[0], TRUTHS[1]),
    ),
    "rounding": lambda: (N.round(), (X * 3).round()),
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
    # results that are views are PyTorch's
    "parts": lambda: tuple(
        part + 1 for part in (X[:, 1:], X[1, ..., -1], X[..., ::2], *X.split(2, 1), *X.unbind(1))
    ),
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
    "functions": lambda: (
        X.trunc(),
        torch.div(X, 0.7, rounding_mode="trunc"),
        torch.fmod(X, 0.7),
        torch.fmod(N, 4),
        (X * 1e-4).expm1(),
        (X.abs() * 1e-4).log1p() * 1e4,
        (X * 30).expm1().sign(),
        ENDS[:-1].expm1(),
        ENDS.log1p(),
        (X.abs() + 1).log2(),
        (X.abs() + 1).log10(),
        X.exp2(),
        torch.round(X, decimals=2),
        torch.round(X * 100, decimals=-1),
        torch.fmax(ENDS, X[0, 0, 0]),
        torch.fmin(ENDS, X[0, 0, 0]),
        torch.copysign(X, -X),
        torch.copysign(ENDS[:-1], torch.tensor(-0.0)).signbit(),
        N.signbit(),
    ),
    "angles": lambda: (
        torch.atan2(X, X.flip(2)),
        torch.atan2(ENDS, ENDS[:, None]),
    ),
    "more sums": lambda: (
        X.cumprod(1),
        X.norm(p=3, dim=1),
        X.norm(p=0, dim=2),
        NONE.mean(0),
        *torch.var_mean(NONE, 0),
        X[0, 0, 0].max(0),
        torch.sort(X[0, 0, 0]),
        X.sort(stable=True, dim=1, descending=True),
    ),
    "more products": lambda: (
        torch.addmv(X[0, :, 0], X[0], X[1, 0], beta=0.5, alpha=2),
        torch.addbmm(X[0, :, :3], X, X.mT, beta=0.5, alpha=2),
        torch.cdist(X, X + 1),
        torch.cdist(X, X + 1, p=1),
        torch.cdist(X, X + 1, p=math.inf),
    ),
    "places": lambda: (
        X.diagonal(0, 1, 2),
        X.diagonal(1, 2, 0),
        X.diagonal(-1, 1, 2),
        torch.diag(X[0, 0]),
        X.unfold(2, 2, 1),
        X.unfold(1, 3, 2),
        X.roll(5),
        X.as_strided((2, 2), (3, 5), 4),
        X.transpose(0, 2).as_strided((3, 4), (1, 2), 1),
    ),
    "more writes": lambda: (
        X.scatter_add(1, N.abs() % 3, X),
        X.scatter_add(2, N.abs()[:, :2, :3] % 4, X),
        X.scatter_reduce(1, N.abs() % 3, X, "amax"),
        X.scatter_reduce(1, N.abs() % 3, X, "prod"),
        X.scatter(1, N.abs() % 3, X, reduce="multiply"),
        put((slice(None), torch.tensor([2, 0])), X[:, :2]),
        put((slice(None), torch.tensor([2, 0]), torch.tensor([[1], [3]])), X[0, 0, 0]),
        put((torch.tensor([0, 1]), slice(None), torch.tensor([3, 0])), X[:, :, 0]),
        put((slice(None), 1), X[:, 0]),
        X.index_add(1, torch.tensor([2, 2]), X[:, :2], alpha=2),
        X.index_copy(2, torch.tensor([3, 0]), X[..., :2]),
        X.index_fill(1, torch.tensor([0]), 2.0),
    ),
    "more images": lambda: (
        functional.adaptive_avg_pool2d(IMAGE, (5, 3)),
        functional.adaptive_avg_pool2d(IMAGE[0], (4, None)),
        functional.adaptive_avg_pool1d(IMAGE[0], 3),
        functional.adaptive_avg_pool3d(IMAGE, (3, 2, 5)),
        functional.adaptive_max_pool2d(IMAGE, (5, 4)),
        functional.adaptive_max_pool1d(IMAGE[0], 3),
        functional.max_pool2d(IMAGE[0], 3, 2, 1),
        functional.max_pool2d(IMAGE, 3, 2, ceil_mode=True),
        functional.avg_pool2d(IMAGE, 3, 2, 1, ceil_mode=True),
        functional.avg_pool2d(IMAGE, 3, 2, 1, divisor_override=2),
        functional.avg_pool2d(IMAGE, 3, 2, 1, count_include_pad=False, divisor_override=5),
        functional.avg_pool3d(IMAGE, 2),
        functional.max_pool3d(IMAGE, 2),
        functional.adaptive_avg_pool2d(IMAGE.masked_fill(IMAGE > 0.99, math.inf), (3, 3)),
    ),
    "more normal": lambda: (
        functional.instance_norm(IMAGE),
        functional.instance_norm(IMAGE, weight=IMAGE[0, :, 0, 0], bias=IMAGE[0, :, 1, 1]),
        functional.batch_norm(IMAGE, None, None, training=True),
        functional.group_norm(IMAGE[:, :, 0, 0], 2),
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
    # a global becomes an argument of the graph
    same(FUNCTIONS[name])
    assert len(made) == 1


def test_numbers_that_a_type_does_not_hold_are_compared_by_pytorch() -> None:
    with pytest.warns(ModelWarning, match="-1 as torch.uint8"):
        same(lambda x: x > -1, torch.tensor([3, 250], dtype=torch.uint8))


def test_every_rule_is_of_an_operator_that_there_is() -> None:
    assert len(rules()) > 200
    assert all(isinstance(op, torch._ops.OpOverload) for op in (*rules(), *complex_rules()))
    assert len(complex_rules()) > 50


def test_training_moves_the_statistics(made: list[Any]) -> None:
    model, other = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
    compiled = torch.compile(model, backend=tilewright)
    for _ in range(2):
        close(compiled(IMAGE), other(IMAGE))
        close(model.running_mean, other.running_mean)
        close(model.running_var, other.running_var)
    assert len(made) == 1


@pytest.mark.parametrize(
    "layer",
    [
        lambda: torch.nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True),
        lambda: torch.nn.LSTM(4, 5, bias=False),
        lambda: torch.nn.GRU(4, 5, bidirectional=True),
    ],
)
def test_layers_over_time(layer: Any, made: list[Any]) -> None:
    model = layer().eval()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend=tilewright)
        found, wanted = compiled(X), model(X)
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    assert len(made) == 1


def test_layers_over_time_are_pytorchs_unless_dynamo_traces_them(made: list[Any]) -> None:
    same(torch.nn.LSTM(4, 5).eval(), X)
    assert not made


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_fast_path_of_an_encoder_layer(
    options: dict[str, Any], dynamic: bool, made: list[Any]
) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options).eval()

    def function(x: Any, padding: Any, hidden: Any) -> Any:
        return (
            layer(x),
            layer(x, src_key_padding_mask=padding),
            layer(x, src_mask=hidden),
            layer(x, src_mask=hidden, src_key_padding_mask=padding),
        )

    compiled = torch.compile(function, backend=tilewright, dynamic=dynamic)
    for tokens in (5, 7) if dynamic else (5,):
        padding = torch.arange(tokens) >= torch.tensor([[tokens], [3]])
        given = torch.randn(2, tokens, 16), padding, torch.ones(tokens, tokens).triu(1).bool()
        close(compiled(*given), function(*given))
    assert len(made) == 1  # one program, and no warning
