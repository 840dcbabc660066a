"""PyTorch's modules as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilewright import compile_model, load_artifact
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from tests.integration.pytorch.comparison import IDS, Small, X, close  # noqa: E402
from tilewright.compiler.bindings.torch import export  # noqa: E402


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
    with pytest.raises(ArtifactError, match="already exists"):
        export(model, (IDS,), folder)


def test_one_tensor_is_not_two_inputs(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x - 2 * y

    with pytest.raises(InvalidArgumentError, match="one tensor is passed for two inputs"):
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


def test_transforms_and_encoder_layers_are_exported(tmp_path: Path) -> None:
    """Longer transforms than those that PyTorch would run next to a compiled graph, too."""

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.layer(torch.fft.rfft(x, 200).abs()[..., :16])

    model, x = Spectrum().eval(), torch.randn(2, 5, 200)
    path = export(model, (x,), tmp_path / "m.onnx")
    found = compile_model(path, keep=False).run({"x": x.numpy()})[0]
    close(torch.from_numpy(found), model(x))
