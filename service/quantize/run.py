"""Quantises a float32 model, and compares the accuracy and the speed of both models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import ScheduleSource
from tilewright.compiler.runtime.model import Model
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.plan.planning import ModelRequest, Planned
from tilewright.service.jobs.plan.segment_planning import plan_first_program
from tilewright.service.jobs.report.explain import kernel_seconds
from tilewright.service.quantize.attribution import Attribution, Timed, attribute
from tilewright.service.quantize.errors import NothingToQuantizeError, QuantizeError
from tilewright.service.quantize.fidelity import Fidelity, Outputs, noise_ratio
from tilewright.service.quantize.layers import Layer, Owners, find_layers
from tilewright.service.quantize.limit import Limit, check_limit, keeps
from tilewright.service.quantize.methods import Method, Quantiser, StaticInt8, prepare, tensor_names
from tilewright.service.quantize.report import LayerReport, QuantizeReport, Times
from tilewright.service.quantize.running import CompiledFor, FloatOutputs, layer_fidelity
from tilewright.service.quantize.samples import Samples
from tilewright.service.quantize.selection import PartNoise, Selection, select
from tilewright.service.quantize.switched import flags, switched_model

LAYER_SAMPLES = 8
"""Limit of the samples on which layers are compared. The values of all these samples are in memory
at the same time."""

ALONE_SAMPLES = 4
"""Limit of the samples on which a model with a single quantised part is evaluated."""

SelectSchedules: TypeAlias = Callable[[Planned], tuple[Planned, ScheduleSource | None]]
"""A function that returns the plan and the tuned schedules with which a planned model is timed. The
schedules are None if the model is timed with default schedules."""

Tell: TypeAlias = Callable[[str], None]
"""A function that reports the current step to the user in a few words."""


def by_rule(planned: Planned) -> tuple[Planned, ScheduleSource | None]:
    """Return the plan unchanged, and no schedules, so that kernels use untuned default schedules.

    This is the default of `QuantizeWork.select_schedules`.
    """
    return planned, None


def quiet(_: str) -> None:
    """Discard a progress message; the default of `QuantizeWork.tell`."""


@dataclass(frozen=True, slots=True)
class QuantizeWork:
    """The arguments of `quantize`: the model, the method, the samples, the device and the limit.

    Attributes:
        model: the file of the float32 model.
        method: the quantisation method.
        samples: samples of the model's inputs.
        device: the device on which the kernels are timed.
        mode: the mode in which models are compiled for the device.
        limit: the allowed loss, or None.
        select_schedules: returns the plan and the schedule source with which a model is timed.
        tell: is called with a short text at the beginning of each step.
    """

    model: Path
    method: Method
    samples: Samples
    device: Device
    mode: Mode = field(default_factory=Mode)
    limit: Limit | None = None
    select_schedules: SelectSchedules = by_rule
    tell: Tell = field(default=quiet)


def quantize(work: QuantizeWork) -> tuple[onnx.ModelProto, QuantizeReport]:
    """Quantise a model. Return the quantised model, and the report on its accuracy and speed.

    Raises:
        NothingToQuantizeError: if the method can change no node of the model.
        QuantizeError: if the model cannot be quantised, or only with more than the allowed loss.
        CompilerError: if one of the models does not compile.
        DeviceError: if the device does not answer, or cannot run the models.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-quantize-") as folder:
        return _Run(work, Path(folder)).whole()


class _Run:
    """The steps of one call of `quantize`, and the state that they share."""

    def __init__(self, work: QuantizeWork, folder: Path) -> None:
        self._work = work
        self._folder = folder
        self._sizes = CompiledFor(work.samples.dims, work.mode.threads)
        self._notes: list[str] = []

    def whole(self) -> tuple[onnx.ModelProto, QuantizeReport]:
        work, samples = self._work, self._work.samples
        work.tell(f"running {len(samples.held_out)} samples in float32")
        reference = FloatOutputs.of(self._sizes.compile(work.model), samples.held_out)
        if constant := ", ".join(f"'{name}'" for name in reference.constant()):
            self._notes.append(
                f"all elements of {constant} are equal in float32 for each sample, so the "
                "comparison says nothing about the loss there"
            )
        work.tell("preparing")
        self._model = prepare(work.model, work.method, self._folder)
        self._known = tensor_names(self._model.graph)
        quantiser = Quantiser(self._model, work.method, samples.calibration, self._folder)
        work.tell(f"quantising: {work.method}")
        made = quantiser.quantise()
        if quantiser.wild:
            self._notes.append(
                f"{len(quantiser.wild)} nodes stay in float32: on the samples, values of theirs "
                "are NaN or infinite"
            )
        enclosed = ""
        if quantiser.enclosed:
            plural = "weights stay" if quantiser.enclosed > 1 else "weight stays"
            enclosed = f"{quantiser.enclosed} {plural} in float32 in bodies of If, Loop and Scan"
            self._notes.append(enclosed)
        self._layers = find_layers(self._model.graph, made.graph, quantiser.operators)
        if not self._layers:
            listed = ", ".join(sorted(quantiser.operators))
            raise NothingToQuantizeError(
                f"'{work.model}': there is nothing that {work.method} changes: outside of bodies "
                f"(of If, Loop, Scan) it has no {listed} with the weights or ranges that it takes"
                + (f"; {enclosed}" if enclosed else "")
            )
        work.tell(f"running {len(samples.held_out)} samples quantised")
        outputs = whole = reference.compare(self._compiled(made))
        work.tell("timing kernels")
        before = self._timed(self._model)
        after = self._timed(made)
        found = attribute(self._layers, before, after)
        selection = None
        if work.limit is not None:
            self._notes += check_limit(work.limit, outputs)
            if not keeps(work.limit, outputs):
                made, outputs, selection = self._keep(quantiser, made, found, reference, work.limit)
        kept = {i for p in (selection.kept if selection else ()) for i in found.parts[p].layers}
        if kept:
            work.tell("timing what was chosen")
            after = self._timed(made)
        work.tell(f"comparing {len(self._layers)} layers")
        times = self._times(found, before, after)
        return made, self._report(made, (outputs, whole), times, kept, selection)

    def _compiled(self, made: onnx.ModelProto) -> Model:
        """Compile a quantised model for this machine.

        A failure is reported as an error of onnxruntime's quantisation, because the float32 model
        has compiled before.

        Raises:
            QuantizeError: if the model does not compile.
        """
        try:
            return self._sizes.compile(made)
        except CompilerError as error:
            raise QuantizeError(
                f"onnxruntime quantises '{self._work.model}' to a model that does not compile, "
                f"though the float32 model does: {error}"
            ) from error

    def _timed(self, model: onnx.ModelProto) -> Timed | None:
        """Time the kernels of a model on the device, and return its plan with the times.

        Returns None if the device does not run the target, or if the model has data-dependent
        sizes.
        """
        work = self._work
        path = self._folder / "timed.onnx"
        onnx.save(model, path)
        sizes = {name: (size,) for name, size in work.samples.dims.items()}
        first = plan_first_program(ModelRequest(path, work.mode), sizes)
        if first.stages is not None:
            self._notes += ["the data decide sizes of this model: its kernels are not timed"]
            return None
        planned, schedules = work.select_schedules(first)
        if not work.device.runs(planned.target):
            return None
        kernels = self._sizes.kernels
        builder = ProgramBuilder(schedules, planned.mode, kernels=kernels)
        compiled = builder.build(planned.plan)
        seconds = kernel_seconds(compiled, work.mode.threads, work.device)
        owners = Owners(model.graph, self._known, self._layers)
        tuned = sum(step.workload.key in compiled.tuned for step in planned.plan.kernels)
        return Timed(planned.plan, seconds, owners, tensor_names(model.graph), tuned)

    def _keep(
        self,
        quantiser: Quantiser,
        made: onnx.ModelProto,
        found: Attribution,
        reference: FloatOutputs,
        limit: Limit,
    ) -> tuple[onnx.ModelProto, Outputs, Selection]:
        """Search for parts of the model to keep in float32, so that the model meets the limit.

        A part consists of the layers that share kernels.

        Args:
            quantiser: quantises the model again, except for the parts that stay in float32.
            made: the fully quantised model.
            found: the parts of the model, with their times.
            reference: the float32 model's outputs.
            limit: the allowed loss.

        Returns:
            The model that meets the limit, the deviation of its outputs, and the search.

        Raises:
            QuantizeError: if no tried model meets the limit, so that all parts would stay in
                float32.
        """
        tell, count = self._work.tell, len(found.parts)
        switched = self._sizes.compile(switched_model(self._model, made, self._layers, found.parts))
        few = reference.first(ALONE_SAMPLES)
        candidates = []
        for number, part in enumerate(found.parts):
            tell(f"quantising part {number + 1} of {count} alone")
            alone = frozenset(range(count)) - {number}
            noise = noise_ratio(few.compare(switched, flags(count, alone)))
            candidates.append(PartNoise(number, noise, part.saved_seconds))
        chosen: list[tuple[onnx.ModelProto, Outputs]] = []

        def would_keep(keep: frozenset[int]) -> bool:
            tell(f"trying {len(keep)} of {count} parts in float32")
            return keeps(limit, reference.compare(switched, flags(count, keep)))

        def does_keep(keep: frozenset[int]) -> bool:
            tell(f"quantising anew with {len(keep)} of {count} parts in float32")
            names = [self._layers[i].name for part in keep for i in found.parts[part].layers]
            model = quantiser.quantise(names)
            outputs = reference.compare(self._compiled(model))
            if not keeps(limit, outputs):
                return False
            chosen[:] = [(model, outputs)]
            return True

        selection = select(candidates, would_keep, does_keep)
        if selection is None:
            raise QuantizeError(
                f"--max-loss {limit}: no choice of layers that was tried keeps it but all of them "
                "in float32"
            )
        return *chosen[0], selection

    def _times(self, found: Attribution, before: Timed | None, after: Timed | None) -> Times:
        work = self._work
        facts = work.device.facts
        return Times(
            work.device.name if facts is None else f"{work.device.name} ({facts.model})",
            work.mode.threads,
            None if before is None else sum(before.seconds),
            None if after is None else sum(after.seconds),
            found.parts,
            (found.float_elsewhere, found.quantised_elsewhere),
            tuple((t.tuned, len(t.seconds)) for t in (before, after) if t is not None),
        )

    def _report(
        self,
        made: onnx.ModelProto,
        outputs: tuple[Outputs, Outputs],
        times: Times,
        kept: set[int],
        selection: Selection | None,
    ) -> QuantizeReport:
        work, samples = self._work, self._work.samples
        some = samples.held_out[:LAYER_SAMPLES]
        layers = layer_fidelity(self._model, made, self._layers, some, self._sizes)
        part_of = {index: n for n, part in enumerate(times.parts) for index in part.layers}
        return QuantizeReport(
            str(work.method),
            samples.origin,
            len(samples.calibration) if isinstance(work.method, StaticInt8) else 0,
            len(samples.held_out),
            samples.seen and isinstance(work.method, StaticInt8),
            *outputs,
            _layer_reports(self._layers, layers, part_of, kept),
            times,
            "" if work.limit is None else str(work.limit),
            selection,
            tuple(self._notes),
        )


def _layer_reports(
    layers: Sequence[Layer],
    fidelity: Sequence[Fidelity | None],
    part_of: dict[int, int],
    kept: set[int],
) -> tuple[LayerReport, ...]:
    return tuple(
        LayerReport(layer, index in kept, part_of[index], near)
        for index, (layer, near) in enumerate(zip(layers, fidelity, strict=True))
    )
