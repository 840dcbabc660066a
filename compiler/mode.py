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
"""Types in which values between products are stored, and in which products are computed."""


@dataclass(frozen=True, slots=True)
class Mode(JsonValue):
    """The properties of generated code that do not depend on the workload.

    Attributes:
        target: the target for which code is generated; by default that of this machine.
        threads: threads that a run uses, the calling one included.
        numerics: "strict" turns off algorithms that round differently from the direct one
            (Winograd, Strassen); "fast" allows those that lose about one decimal digit; "loose"
            also allows those that lose more (Winograd's F(6)).
        precision: "bfloat16" or "float16" stores the values of a float32 model between its first
            and its last matrix product or convolution in that type, and multiplies in it. Sums,
            normalisations, inputs and outputs stay float32.
        in_place: whether a growing cache, such as the keys of attention, is a buffer with slack
            capacity, to which each step of a session appends rows.

    Raises:
        InvalidArgumentError: if an option has an impossible value.
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
        """The entries of a record key that depend on the mode: target key, threads and numerics.

        Precision and `in_place` are not part of the key: the workload's types and boundaries
        contain them.
        """
        return self.target.key, self.threads, self.numerics
