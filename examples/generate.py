"""Generate text with a decoder whose caches are states of a session.

python -m examples.generate --model gpt2 --tokens 64

The model has the architecture of GPT-2 or Llama with random weights. Its text has no meaning, but
its speed is realistic. Tokens are first selected greedily and then sampled. If ONNX Runtime is
installed, it generates the same text with IOBinding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright
from benchmarks.decoders import CACHES, DECODERS, first_states, state_names
from benchmarks.generators import Generator, OnnxRuntime, Reach, decoder, generate, likeliest

Logits = NDArray[np.float32]


class Decoder:
    """A compiled decoder with a session that keeps its caches between steps.

    The session does not copy the caches: each step only writes the rows of the new tokens. It
    depends on the model whether the caches have a fixed capacity for all tokens, or grow.

    Args:
        model: the ONNX model.
        threads: the number of threads.
        reach: the number of prompt tokens, and the maximum number of tokens of a text.
    """

    def __init__(self, model: Any, threads: int, reach: Reach) -> None:
        self._grows = all(given.name != "past_length" for given in model.graph.input)
        ranges = {"tokens": f"1..{reach.prompt}", "past": f"0..{reach.length - 1}"}
        compiled = tilewright.compile_model(
            model, threads=threads, dims=ranges if self._grows else None
        )
        # present_key_0 becomes past_key_0, and so on
        self._session = compiled.bind(state_names(model), first_states(model))

    def reset(self) -> None:
        """Clear the caches, to start a new text."""
        self._session.reset()

    def step(self, ids: Sequence[int], past: int) -> Logits:
        """Process the next tokens of a text, and return the logits for the token that follows.

        `ids` are the tokens, and `past` is the number of tokens processed before.
        """
        feeds = {"input_ids": np.array([ids])}
        if not self._grows:  # the length of a growing cache is its shape
            feeds["past_length"] = np.array([past], np.int32)
        (logits,) = self._session.run(feeds)
        last: Logits = logits[0]
        return last


def drawn(seed: int, temperature: float, top: int) -> Callable[[Logits], int]:
    """Return a function that samples one of the `top` most likely tokens from logits.

    A higher temperature makes the probabilities more equal. `seed` initialises the random numbers.
    """
    random = np.random.default_rng(seed)

    def draw(logits: Logits) -> int:
        best = np.argpartition(logits, -top)[-top:]
        powers = np.exp((logits[best] - logits[best].max()) / temperature)
        return int(random.choice(best, p=powers / powers.sum()))

    return draw


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="examples.generate", description=__doc__)
    parser.add_argument("--model", default="gpt2", choices=list(DECODERS))
    parser.add_argument(
        "--cache", default="fixed", choices=CACHES, help="with room for all tokens, or growing"
    )
    parser.add_argument("--prompt", type=int, default=37, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument(
        "--top", type=int, default=40, help="number of likeliest tokens to sample from"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a tiny model, to try out")
    options = parser.parse_args(arguments)

    reach = Reach(options.prompt, options.prompt + options.tokens)
    model = decoder(options.model, reach, options.cache, small=options.small)
    words = model.graph.output[-1].type.tensor_type.shape.dim[1].dim_value
    prompt = np.random.default_rng(options.seed).integers(0, words, options.prompt).tolist()

    ours = Decoder(model, options.threads, reach)
    generate(ours, prompt, 2, likeliest)  # compiles for the prompt, and for single tokens
    drawing = drawn(options.seed, options.temperature, min(options.top, words))
    runs: list[tuple[str, Generator, Callable[[Logits], int]]]
    runs = [("greedy", ours, likeliest), ("drawn", ours, drawing)]
    if find_spec("onnxruntime") is not None:
        fixed = decoder(options.model, reach, "fixed", small=options.small)
        theirs = OnnxRuntime(fixed, options.threads, reach)
        generate(theirs, prompt, 2, likeliest)
        runs.append(("ONNX Runtime, greedy", theirs, likeliest))
    for name, engine, choose in runs:
        tokens, _, seconds = generate(engine, prompt, options.tokens, choose)
        rate = (len(tokens) - 1) / sum(seconds[1:])
        print(f"{name}: {' '.join(map(str, tokens))}")
        print(f"  first token after {seconds[0] * 1e3:.1f} ms, then {rate:.1f} tokens a second")


if __name__ == "__main__":
    main()
