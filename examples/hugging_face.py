"""Run a text classification pipeline of Hugging Face's transformers with a compiled model.

Needs PyTorch and transformers. The model has random weights and a vocabulary of a few words, so
that nothing is downloaded. For a pretrained model, replace it by
`AutoModelForSequenceClassification.from_pretrained(...)`; the other code stays the same.

python examples/hugging_face.py
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

WORDS = ["[PAD]", "[UNK]", "this", "film", "is", "very", "good", "bad", "and", "long"]
TEXTS = ["this film is good", "this film is very very long and bad", "good and long"]


def main() -> None:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({w: k for k, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
    )
    model = BertForSequenceClassification(config).eval()
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    wanted = classify(TEXTS)
    # replaced in place, so that the pipeline still recognises the model's class
    model.compile(backend="tilewright", dynamic=True)
    found = classify(TEXTS)
    for text, mine, theirs in zip(TEXTS, found, wanted, strict=True):
        print(f"{text}: {mine['label']} {mine['score']:.4f}, in eager mode {theirs['score']:.4f}")
        if mine["label"] != theirs["label"] or abs(mine["score"] - theirs["score"]) > 1e-4:
            raise SystemExit("the compiled model disagrees with PyTorch")


if __name__ == "__main__":
    main()
