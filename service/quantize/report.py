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
    """The result for a layer that the method can quantise.

    Attributes:
        layer: the layer.
        kept: whether the layer stays in float32.
        part: the position of the layer's part in the list of parts. A part has the layers that
            share kernels, so that they are timed together.
        fidelity: the deviation of the layer's value in the quantised model from its value in the
            float32 model. It includes the noise of the layers before it. None if no value of the
            layer exists in both models.
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
    """Kernel times of one run on a device, in seconds; None if the device does not run the models.

    A part of the model consists of the layers that share kernels, so that they are timed together.

    Attributes:
        device: the name of the device.
        threads: the number of threads.
        float_seconds: the time of the float32 model.
        quantised_seconds: the time of the resulting model, whose parts are quantised or in float32.
        parts: the times of each part, both in the float32 model and in the fully quantised model.
        elsewhere: the times of the kernels that belong to no layer, in the float32 model and in the
            fully quantised model.
        tuned: (number of kernels with a tuned schedule, number of all kernels) for the float32
            model and for the resulting model; empty without times.
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
    """The comparison of a quantised model with its float32 model.

    Attributes:
        method: the quantisation method, as text for users.
        origin: the origin of the samples: a path, or `"drawn"` for random ones.
        samples: the number of samples for calibration; 0 if the method needs no calibration.
        measured: the number of samples on which the models are compared.
        seen: whether the models are compared on calibration samples.
        outputs: the deviation of the resulting model's outputs.
        all_quantised: the deviation of the fully quantised model's outputs, which may exceed the
            limit.
        layers: all layers that the method can quantise, in the model's order.
        times: the kernel times on the device.
        limit: the allowed loss, as text for users; "" if none was stated.
        selection: the search for the parts to keep in float32; None if all parts are quantised.
        notes: remarks for the user.
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
        """Return the report as plain data for `json.dumps`."""
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
