"""Compute sentence embeddings with sentence-transformers and a compiled network.

The ONNX back end of sentence-transformers loads networks with optimum and runs them with ONNX
Runtime. Here, `compiler.bindings.torch.export` exports the network, and `tilewright.ort` runs it.
The weights are random and the vocabulary is a few words, so that nothing is downloaded. Needs
PyTorch and sentence-transformers.

python examples/sentence_embeddings.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tilewright import ort
from tilewright.compiler.bindings.torch import export

WORDS = ["[PAD]", "[UNK]", "a", "cat", "dog", "sleeps", "runs", "on", "the", "mat"]
TEXTS = ["a cat sleeps on the mat", "the dog runs", "a dog sleeps"]


def saved_network(folder: Path) -> Path:
    """Write a small BERT model and its tokenizer to a folder in the format of transformers."""
    words = Tokenizer(models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    BertModel(config).save_pretrained(folder)
    return folder


class Network(torch.nn.Module):  # type: ignore[misc]  # torch is not installed for mypy
    """A wrapper that returns only a transformer's last hidden states, for the export."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.network(input_ids=input_ids, attention_mask=attention_mask)
        return states.last_hidden_state


class Compiled(torch.nn.Module):  # type: ignore[misc]
    """A replacement for the transformer of a SentenceTransformer, which runs the compiled model.

    Like the transformer, it reads the features `input_ids` and `attention_mask`, and adds the
    feature `token_embeddings`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.session = ort.InferenceSession(path)

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        feeds = {name: features[name].numpy() for name in ("input_ids", "attention_mask")}
        (states,) = self.session.run(None, feeds)
        return {**features, "token_embeddings": torch.from_numpy(states)}


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as made, torch.no_grad():
        folder = Path(made)
        transformer = Transformer(str(saved_network(folder / "bert")))
        model = SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
        wanted = model.encode(TEXTS, convert_to_tensor=True)
        ids = torch.ones(2, 6, dtype=torch.int64)
        sizes = {0: torch.export.Dim("sentences", max=64), 1: torch.export.Dim("words", max=32)}
        path = export(
            Network(transformer.auto_model.eval()),
            (ids, torch.ones_like(ids)),
            folder / "bert.onnx",
            dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        )
        states = Compiled(path)(transformer.preprocess(TEXTS))
        found = model[1](states)["sentence_embedding"]
    error = float((found - wanted).abs().max() / wanted.abs().max())
    print(f"embeddings {tuple(found.shape)} within {error:.1e} of sentence-transformers' own")
    if error > 1e-4:
        raise SystemExit("the compiled network disagrees with PyTorch")


if __name__ == "__main__":
    main()
