"""Data classes of the report on a quantised model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.quantize.attribution import ModelPart
from tilewright.service.quantize.fidelity import Fidelity, Outputs
from tilewright.service.quantize.layers import Layer
from tilewright.service.quantize.selection import Selection


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The report on a layer that the method can quantise.

    Attributes:
        layer: the layer.
        kept: whether the layer stays in float32.
        part: the position of the `ModelPart` that it belongs to.
        fidelity: the fidelity of its value in the quantised model to the float32 model's value,
            including the noise from the layers before it; None if they have no common value.
    """

    layer: Layer
    kept: bool
    part: int
    fidelity: Fidelity | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.layer.name,
            "operator": self.layer.operator,
            "value": self.layer.value,
            "float32": self.kept,
            "part": self.part,
            "fidelity": None if self.fidelity is None else self.fidelity.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the kernels in one run on the device; None if the device does not run the code.

    Attributes:
        device: the device of the runs.
        threads: the threads of a run.
        float_seconds: the seconds of the float32 model.
        quantised_seconds: the seconds of the resulting model.
        parts: the times of each part in the float32 model and in the model with all parts
            quantised, including parts that the result keeps in float32.
        elsewhere: the seconds of the kernels that belong to no layer, in the same two models as
            `parts`.
        tuned: the number of kernels with a tuned schedule and the number of all kernels, for the
            float32 model and for the resulting one; empty without times.
    """

    device: str
    threads: int
    float_seconds: float | None
    quantised_seconds: float | None
    parts: tuple[ModelPart, ...]
    elsewhere: tuple[float | None, float | None]
    tuned: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "threads": self.threads,
            "float_seconds": self.float_seconds,
            "quantised_seconds": self.quantised_seconds,
            "parts": [
                {
                    "layers": list(part.layers),
                    "float_seconds": part.float_seconds,
                    "quantised_seconds": part.quantised_seconds,
                    "saved_seconds": part.saved_seconds,
                }
                for part in self.parts
            ],
            "elsewhere": dict(
                zip(("float_seconds", "quantised_seconds"), self.elsewhere, strict=True)
            ),
            "tuned_kernels": [
                {"tuned": tuned, "kernels": kernels} for tuned, kernels in self.tuned
            ],
        }


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """A comparison of a quantised model with its float32 model.

    Attributes:
        method: the method, as text for users.
        origin: the origin of the samples: a path, or `"drawn"` for random ones.
        samples: the number of samples for calibration; 0 if the method needs no calibration.
        measured: the number of samples that the report is computed on.
        seen: whether the report uses the calibration samples.
        outputs: the fidelity of the whole model's outputs.
        all_quantised: the fidelity of the outputs with every layer quantised, which may exceed the
            limit.
        layers: every layer that the method quantises, in order.
        times: the times on the device.
        limit: the allowed loss, as text for users; "" if none was stated.
        selection: the search for the parts to keep in float32; None if all parts could be quantised
            or no limit was stated.
        notes: remarks for the reader.
    """

    method: str
    origin: str
    samples: int
    measured: int
    seen: bool
    outputs: Outputs
    all_quantised: Outputs
    layers: Sequence[LayerReport]
    times: Times
    limit: str = ""
    selection: Selection | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {
            "method": self.method,
            "samples": {
                "origin": self.origin,
                "calibration": self.samples,
                "measured": self.measured,
                "seen": self.seen,
            },
            "outputs": [output.to_json() for output in self.outputs],
            "all_quantised": [output.to_json() for output in self.all_quantised],
            "layers": [layer.to_json() for layer in self.layers],
            "times": self.times.to_json(),
            "limit": self.limit or None,
            "selection": None if self.selection is None else self.selection.to_json(),
            "notes": list(self.notes),
        }
