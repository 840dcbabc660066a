"""Export MobileNetV2 and BERT-base from transformers to ONNX files in benchmarks/models/.

`make models` runs it in an environment of its own (torch, transformers, onnx, onnxscript). The
parameters are random with a fixed seed, and no weight is downloaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import BertConfig, BertModel, MobileNetV2Config, MobileNetV2ForImageClassification

FOLDER = Path(__file__).parent / "models"
OPSET = 18


class Logits(nn.Module):  # type: ignore[misc]  # torch is not installed for mypy
    """pixel_values: (1, 3, 224, 224) -> logits: (1, labels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixel_values=pixel_values).logits
        return logits


class HiddenState(nn.Module):  # type: ignore[misc]  # as above
    """input_ids, token_type_ids: int64 (1, tokens), without padding -> (1, tokens, hidden)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=input_ids, token_type_ids=token_type_ids)
        state: torch.Tensor = output.last_hidden_state
        return state


def randomise(model: nn.Module) -> None:
    """He-scaled convolutions and plausible batch norms: transformers' own start fades to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, 0.0, 0.05)
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, 0.0, 0.05)
            nn.init.uniform_(module.running_var, 0.6, 1.2)


def export_mobilenet_v2(path: Path) -> None:
    torch.manual_seed(0)
    model = MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000))
    randomise(model)
    _export(Logits(model), (torch.zeros(1, 3, 224, 224),), ["pixel_values"], ["logits"], path)


def export_bert_base(path: Path, tokens: int = 128) -> None:
    torch.manual_seed(0)
    model = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    types = torch.zeros_like(ids)  # the same tensor twice would become one input
    names = ["input_ids", "token_type_ids"]
    _export(HiddenState(model), (ids, types), names, ["last_hidden_state"], path)


def _export(
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    input_names: list[str],
    output_names: list[str],
    path: Path,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module.eval(),
        inputs,
        path,
        input_names=input_names,
        output_names=output_names,
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
    )
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


EXPORTS = {"mobilenetv2-exported": export_mobilenet_v2, "bert-base-128-exported": export_bert_base}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(EXPORTS), help="one of the models instead of all")
    only: str | None = parser.parse_args().only
    for name in [only] if only else EXPORTS:
        EXPORTS[name](FOLDER / f"{name}.onnx")


if __name__ == "__main__":
    main()
