"""Small transformer architectures with random parameters, exported by both of PyTorch's exporters.

Each family has a small configuration, typically two layers of 64 to 128 elements and a vocabulary
of 1,000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.exporters.from_torch import write
from benchmarks.exporters.written import Feeds, Maker, make_all

VOCABULARY = 1000
TOKENS = (32, 7)
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 16}
NO_CACHE = {"use_cache": False}


def _model(name: str, config: str, **options: Any) -> Any:
    """Build a transformers model.

    `name` and `config` are class names; `options` are fields of the configuration.
    """
    torch.manual_seed(0)
    made = getattr(transformers, config)(attn_implementation="eager", **options)
    return getattr(transformers, name)(made)


def text(
    family: str,
    path: Path,
    *,
    dynamo: bool,
    mask: bool = True,
    options: Mapping[str, Any],
    **more: Any,
) -> Sequence[Feeds]:
    """Export a text model that maps tokens (batch, tokens) to hidden states.

    A second input is the attention mask, if `mask` is set. Both dimensions are dynamic. `options`
    are fields of the configuration; `more` can override the names of the classes (`model`,
    `config`).
    """
    config = more.get("config", f"{family}Config")
    model = _model(more.get("model", f"{family}Model"), config, **options)
    runs, axes = [], {}
    for tokens in TOKENS:
        ids = torch.randint(5, VOCABULARY, (2, tokens))
        run = {"input_ids": ids}
        if mask:
            run["attention_mask"] = torch.ones_like(ids)
            run["attention_mask"][1, tokens - 2 :] = 0
        runs.append(run)
    for name in runs[0]:
        axes[name] = {0: "batch", 1: "tokens"}
    return write(model, runs, path, axes, dynamo)


def vision(
    family: str,
    path: Path,
    *,
    dynamo: bool,
    size: int = 64,
    options: Mapping[str, Any],
    **more: Any,
) -> Sequence[Feeds]:
    """Export a vision model that maps images (batch, 3, size, size) to its first output.

    The batch is dynamic. `options` are fields of the configuration; `more` can override the names
    of the classes (`model`, `config`).
    """
    config = more.get("config", f"{family}Config")
    model = _model(more.get("model", f"{family}Model"), config, **options)
    runs = [{"pixel_values": torch.randn(batch, 3, size, size)} for batch in (2, 3)]
    return write(model, runs, path, {"pixel_values": {0: "batch"}}, dynamo)


def speech(family: str, path: Path, *, dynamo: bool, options: Mapping[str, Any]) -> Sequence[Feeds]:
    """Export a speech model that maps audio (1, samples), of dynamic length, to hidden states."""
    model = _model(f"{family}Model", f"{family}Config", **options)
    runs = [{"input_values": torch.randn(1, samples)} for samples in (4000, 2345)]
    return write(model, runs, path, {"input_values": {1: "samples"}}, dynamo)


def encoder_decoder(
    family: str, path: Path, *, dynamo: bool, options: Mapping[str, Any]
) -> Sequence[Feeds]:
    """Export an encoder-decoder model that returns the decoder's hidden states.

    The inputs are the encoder's and the decoder's tokens, both of dynamic length.
    """
    model = _model(f"{family}Model", f"{family}Config", **options)
    runs = [
        {
            "input_ids": torch.randint(5, VOCABULARY, (1, tokens)),
            "decoder_input_ids": torch.randint(5, VOCABULARY, (1, tokens // 2)),
        }
        for tokens in TOKENS
    ]
    axes = {"input_ids": {1: "tokens"}, "decoder_input_ids": {1: "made"}}
    return write(model, runs, path, axes, dynamo)


def whisper(path: Path, *, dynamo: bool) -> Sequence[Feeds]:
    """Export the Whisper encoder, which maps mel features (1, 80, 300) to hidden states."""
    sizes = {
        "d_model": 64,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 128,
    }
    small = {
        "vocab_size": VOCABULARY,
        "max_source_positions": 150,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
    }
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    model = _model("WhisperModel", "WhisperConfig", **sizes, **small, **ids).encoder
    return write(model, [{"input_features": torch.randn(1, 80, 300)}], path, {}, dynamo)


_VIT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 64,
    "patch_size": 16,
}
_SPEECH = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
} | NO_CACHE
_GPT = {"vocab_size": VOCABULARY, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}

_FAMILIES: dict[str, Any] = {
    "bert": partial(text, "Bert", options=SMALL),
    "roberta": partial(text, "Roberta", options=SMALL),
    "electra": partial(text, "Electra", options=SMALL | {"embedding_size": 32}),
    "albert": partial(text, "Albert", options=SMALL | {"embedding_size": 32}),
    "distilbert": partial(
        text,
        "DistilBert",
        options={
            "vocab_size": VOCABULARY,
            "dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 128,
        },
    ),
    "mobilebert": partial(
        text,
        "MobileBert",
        options=SMALL | {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    ),
    "squeezebert": partial(text, "SqueezeBert", options=SMALL | {"embedding_size": 64}),
    "mpnet": partial(text, "MPNet", options=SMALL),
    "camembert": partial(text, "Camembert", options=SMALL),
    "deberta": partial(text, "DebertaV2", options=SMALL | {"relative_attention": True}),
    "funnel": partial(
        text,
        "Funnel",
        options={
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
        },
    ),
    "ibert": partial(text, "IBert", options=SMALL),
    "modernbert": partial(
        text, "ModernBert", options=SMALL | {"pad_token_id": 0, "reference_compile": False}
    ),
    "gpt2": partial(text, "GPT2", options=_GPT | NO_CACHE),
    "gpt-neo": partial(
        text,
        "GPTNeo",
        options={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 128,
        }
        | NO_CACHE,
    ),
    "gpt-neox": partial(text, "GPTNeoX", options=SMALL | NO_CACHE),
    "gptj": partial(text, "GPTJ", options=_GPT | {"rotary_dim": 8} | NO_CACHE),
    "codegen": partial(text, "CodeGen", options=_GPT | {"rotary_dim": 8} | NO_CACHE),
    "opt": partial(
        text,
        "OPT",
        options={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 128,
            "word_embed_proj_dim": 64,
            "max_position_embeddings": 128,
        }
        | NO_CACHE,
    ),
    "bloom": partial(
        text,
        "Bloom",
        options={"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4} | NO_CACHE,
    ),
    "falcon": partial(text, "Falcon", options=SMALL | NO_CACHE),
    "llama": partial(text, "Llama", options=GROUPED | NO_CACHE),
    "mistral": partial(text, "Mistral", options=GROUPED | {"sliding_window": 8} | NO_CACHE),
    "qwen2": partial(text, "Qwen2", options=GROUPED | NO_CACHE),
    "qwen3": partial(text, "Qwen3", options=GROUPED | NO_CACHE),
    "gemma": partial(text, "Gemma", options=GROUPED | NO_CACHE),
    "gemma2": partial(text, "Gemma2", options=GROUPED | NO_CACHE),
    "phi": partial(text, "Phi", options=SMALL | NO_CACHE),
    "phi3": partial(text, "Phi3", options=GROUPED | {"pad_token_id": 0} | NO_CACHE),
    "stablelm": partial(text, "StableLm", options=GROUPED | NO_CACHE),
    "olmo": partial(text, "Olmo", options=GROUPED | {"pad_token_id": 0} | NO_CACHE),
    "mamba": partial(
        text,
        "Mamba",
        mask=False,
        options={
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
        }
        | NO_CACHE,
    ),
    "t5-encoder": partial(
        text,
        "T5",
        model="T5EncoderModel",
        options={
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
        },
    ),
    "bart": partial(encoder_decoder, "Bart", options=_BART),
    "pegasus": partial(encoder_decoder, "Pegasus", options=_BART),
    "marian": partial(encoder_decoder, "Marian", options=_BART | {"pad_token_id": 0}),
    "whisper-encoder": whisper,
    "wav2vec2": partial(speech, "Wav2Vec2", options=_SPEECH),
    "hubert": partial(speech, "Hubert", options=_SPEECH),
    "wavlm": partial(speech, "WavLM", options=_SPEECH),
    "vit": partial(vision, "ViT", options=_VIT),
    "deit": partial(vision, "DeiT", options=_VIT),
    "beit": partial(vision, "Beit", options=_VIT),
    "dinov2": partial(vision, "Dinov2", options=_VIT),
    "siglip": partial(vision, "SiglipVision", options=_VIT),
    "clip-vision": partial(vision, "CLIPVision", options=_VIT),
    "convnext": partial(
        vision, "ConvNext", options={"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 1]}
    ),
    "segformer": partial(
        vision,
        "Segformer",
        options={
            "hidden_sizes": [16, 32, 64, 64],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 4],
            "decoder_hidden_size": 64,
        },
    ),
    "swin": partial(
        vision,
        "Swin",
        options={
            "image_size": 64,
            "embed_dim": 32,
            "depths": [1, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "mobilevit": partial(
        vision,
        "MobileViT",
        options={
            "image_size": 64,
            "hidden_sizes": [32, 48, 64],
            "neck_hidden_sizes": [8, 16, 24, 32, 48, 64, 96],
        },
    ),
    "poolformer": partial(
        vision,
        "PoolFormer",
        options={"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]},
    ),
    "resnet": partial(
        vision, "ResNet", options={"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2]}
    ),
}

MAKERS: dict[str, Maker] = {
    **{f"hf-{name}": partial(maker, dynamo=False) for name, maker in _FAMILIES.items()},
    **{f"hf-{name}-dynamo": partial(maker, dynamo=True) for name, maker in _FAMILIES.items()},
}

if __name__ == "__main__":
    make_all(MAKERS)
