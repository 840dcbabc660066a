"""Export small transformers from PyTorch to the ONNX files next to this script.

Run where torch, transformers, onnx and onnxscript are installed: `python tests/models/export.py`.
The files are kept in the repository, so that the tests need none of these. Parameters are random
with a fixed seed; sizes are as small as the structure allows; batch, sequence and cache stay open.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
import transformers as hf
from torch import nn

FOLDER = Path(__file__).parent
OPSET = 18
BATCH = torch.export.Dim("batch", min=1, max=64)
SEQUENCE = torch.export.Dim("sequence", min=2, max=60)
PAST = torch.export.Dim("past", min=2, max=60)
VOCABULARY, LAYERS, POSITIONS = 40, 2, 64


class Encoder(nn.Module):
    """input_ids, attention_mask: int64 (batch, sequence) -> (batch, sequence, hidden)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Vision(nn.Module):
    """pixels: (batch, 3, height, width) -> (batch, tokens, hidden)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixels).last_hidden_state


class Decoder(nn.Module):
    """input_ids: int64 (1, sequence), and a cache of keys and values -> logits, and the cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = hf.cache_utils.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        layers = result.past_key_values.layers
        return result.logits, *(part for layer in layers for part in (layer.keys, layer.values))


def export(name, module, inputs, input_names, output_names, dims) -> None:
    path = FOLDER / f"{name}.onnx"
    torch.onnx.export(
        module.eval(),
        inputs,
        path,
        input_names=input_names,
        output_names=output_names,
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        dynamic_shapes=dims,
    )
    model = onnx.load(path)
    # where in PyTorch a node came from is most of so small a file
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.functions):
        del part.metadata_props[:]
    for node in model.graph.node:
        node.doc_string = ""
    del model.graph.value_info[:]
    del model.metadata_props[:]
    onnx.save(model, path)


def decoders(name: str, model: nn.Module, heads: int, width: int) -> None:
    """Prefill without a cache, and one token after a cache."""
    parts = [f"{kind}{layer}" for layer in range(LAYERS) for kind in ("key", "value")]
    outputs = ["logits", *(f"new_{part}" for part in parts)]
    many = torch.randint(0, VOCABULARY, (1, 12))
    export(f"{name}-prefill", Decoder(model), (many,), ["ids"], outputs, ({1: SEQUENCE},))
    cache = tuple(torch.randn(1, heads, 10, width) for _ in parts)
    one = torch.randint(0, VOCABULARY, (1, 1))
    dims = ({}, tuple({2: PAST} for _ in cache))
    export(f"{name}-decode", Decoder(model), (one, *cache), ["ids", *parts], outputs, dims)


def main() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (2, 16))
    mask = torch.ones_like(ids)
    dynamic_dims = ({0: BATCH, 1: SEQUENCE}, {0: BATCH, 1: SEQUENCE})
    for attention in ("eager", "sdpa"):
        bert = hf.BertModel(
            hf.BertConfig(
                hidden_size=24,
                num_hidden_layers=LAYERS,
                num_attention_heads=3,
                intermediate_size=40,
                vocab_size=VOCABULARY,
                max_position_embeddings=POSITIONS,
                attn_implementation=attention,
            ),
            add_pooling_layer=False,
        )
        names = ["input_ids", "attention_mask"]
        export(f"bert-{attention}", Encoder(bert), (ids, mask), names, ["y"], dynamic_dims)
    vit = hf.ViTModel(
        hf.ViTConfig(
            hidden_size=24,
            num_hidden_layers=LAYERS,
            num_attention_heads=3,
            intermediate_size=40,
            image_size=32,
            patch_size=8,
        ),
        add_pooling_layer=False,
    )
    export("vit", Vision(vit), (torch.randn(2, 3, 32, 32),), ["pixels"], ["y"], ({0: BATCH},))
    gpt2 = hf.GPT2Config(
        n_embd=24, n_layer=LAYERS, n_head=3, vocab_size=VOCABULARY, n_positions=POSITIONS
    )
    decoders("gpt2", hf.GPT2LMHeadModel(gpt2), heads=3, width=8)
    llama = hf.LlamaConfig(
        hidden_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=40,
        vocab_size=VOCABULARY,
        max_position_embeddings=POSITIONS,
    )
    decoders("llama", hf.LlamaForCausalLM(llama), heads=2, width=6)


if __name__ == "__main__":
    main()
