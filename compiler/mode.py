"""The mode of a compilation: target, threads, numerics and precision of the generated code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, get_args

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, unknown_choice
from tilewright.compiler.limits import Numerics, Precision
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm, Via
from tilewright.compiler.runtime.native import check_threads
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

NUMERICS: tuple[str, ...] = get_args(Numerics)

PRECISIONS = tuple(map(DType, get_args(Precision)))
"""Element types of the values that are stored between products such as convolutions, and of the
factors of these products."""


@dataclass(frozen=True, slots=True)
class Mode(JsonValue):
    """The properties of generated code that are the same for all kernels of a compilation.

    Attributes:
        target: the target for which code is generated; by default this machine.
        threads: number of threads that a run uses, including the calling thread.
        numerics: "strict" allows only algorithms that round like the direct algorithm. "fast" also
            allows algorithms that lose about one decimal digit (Winograd, Strassen), and "loose"
            those that lose more (Winograd's F(6)).
        precision: the type of stored values and of factors in a float32 model. "bfloat16" or
            "float16" applies between the first and the last matrix product or convolution; sums,
            normalisations, inputs and outputs stay float32.
        in_place: whether a growing cache, such as the keys of attention, is updated in place. Its
            buffer then has unused rows at the end, into which each run writes the new rows.

    Raises:
        InvalidArgumentError: if `threads`, `numerics` or `precision` has an invalid value.
    """

    json_form: ClassVar[JsonForm] = JsonForm("mode", InvalidArgumentError)

    target: Target = field(default_factory=lambda: resolve_target("host"))
    threads: int = 1
    numerics: str = "fast"
    precision: Annotated[str, Via(DType, lambda found, _: found, DType)] = DType.FLOAT32
    in_place: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("numerics", self.numerics, NUMERICS),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise InvalidArgumentError(unknown_choice(name, value, known))
        check_threads(self.threads)

    @property
    def key(self) -> tuple[str, int, str]:
        """The mode's part of the key of a tuning record: target key, threads and numerics.

        The key also identifies the workload (the fused subgraph that was tuned). Precision and
        `in_place` are not included, because they change the types and boundaries of the workload.
        """
        return self.target.key, self.threads, self.numerics
