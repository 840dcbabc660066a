"""Expansion of requests for devices without NumPy, such as a worker in a browser.

Such a device can neither generate random inputs nor interpret layouts. So an expanded request also
has a plan (JSON) and the input arrays in row-major order. For each buffer, the plan names the array
that fills it, and the strides from which the device computes the position of each element. The
other fields of the request, and its result, are unchanged.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.compiler.loops.layout import ROW_MAJOR, strides
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec, KernelSpec
from tilewright.compiler.runtime.packing import make_weight
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.program_json import program_from_json
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.protocol.batches import Candidate, Case, InputSpec, MeasureRequest
from tilewright.tuner.protocol.blobs import array_of_bytes, digest_bytes
from tilewright.tuner.protocol.messages import Request
from tilewright.tuner.protocol.runs import SpeedsWork

_log = logging.getLogger(__name__)

MOST_ELEMENTS = 1 << 28
"""Limit of the elements of random arrays that a device holds at the same time, if its memory is
unknown: 1 GiB of float32."""

KEPT_BYTES = 256 << 20
"""Limit of the cached arrays in bytes. Further batches of the same workloads use these arrays
again."""


class PlainForms:
    """Adds input arrays and a plan to requests, for devices that do not have NumPy.

    Such a device can neither generate random inputs nor interpret layouts. The plan states (as
    JSON) which array fills each buffer, and with which strides. At most `kept_bytes` of arrays are
    cached, because the batches of a workload share their arrays.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._arrays: OrderedDict[tuple[InputSpec, str], tuple[str, bytes]] = OrderedDict()

    def expanded(
        self,
        request: Request,
        blob: Callable[[str], bytes | memoryview],
        most_elements: int = MOST_ELEMENTS,
    ) -> tuple[Request, Mapping[str, bytes]]:
        """Add the input arrays and a plan to a request, for a device that does not have NumPy.

        The plan states which array fills each buffer, and with which strides. Requests that need no
        plan are returned unchanged.

        Args:
            request: a batch of candidates, or a run of whole programs.
            blob: returns the bytes of a blob of the request, by digest.
            most_elements: the limit for the total number of elements of the random arrays: of one
                set of inputs for a batch, or of all programs for a run.

        Returns:
            The new request, and the blobs that it names in addition, by digest: the plan and the
            arrays.

        Raises:
            ValueError: if the limit is exceeded, or if a program has dynamic sizes or accesses
                memory outside its buffers.
        """
        if request.plain:
            return request, {}
        if isinstance(request, MeasureRequest):
            for case in request.cases:
                _check_size(sum(prod(each.shape) for each in case.inputs), most_elements)
            return self.batch(request)
        if isinstance(request.work, SpeedsWork):
            return request, {}
        texts = [bytes(blob(each.program)) for each in request.programs]
        programs = [program_from_json(json.loads(text)) for text in texts]
        ports = (port for program in programs for port in program.inputs)
        _check_size(sum(prod(port.shape) for port in ports), most_elements)
        given = [
            {name: array_of_bytes(blob(digest)) for name, digest in each.inputs.items()}
            for each in request.programs
        ]
        plain, made = plain_programs(programs, request.work.seed, given)
        sizes = {digest: len(data) for digest, data in made.items()}
        return replace(request, plain=plain, blobs={**request.blobs, **sizes}), made

    def batch(self, request: MeasureRequest) -> tuple[MeasureRequest, dict[str, bytes]]:
        """Add a plan, which states how to fill each buffer, to a batch of candidates.

        A candidate's kernel specification may be invalid, or not fit the request's inputs. Its part
        of the plan is then an error message. The device reports this candidate as RUN_ERROR, and
        measures the others.

        Returns:
            The new request, and the additional blobs by digest: the plan and the input arrays.
        """
        blobs: dict[str, bytes] = {}
        cases = [
            [self._kernel_or_error(each, case, blobs) for each in request.candidates]
            for case in request.cases
        ]
        return replace(request, plain=_added(blobs, {"cases": cases})), blobs

    def _kernel_or_error(
        self, candidate: Candidate, case: Case, blobs: dict[str, bytes]
    ) -> dict[str, Any]:
        try:
            return self._kernel(KernelSpec.from_json(candidate.spec), case, blobs)
        except ValueError as error:
            _log.warning("candidate %s: %s", candidate.trial_id, error)
            return {"error": str(error)}

    def _kernel(self, spec: KernelSpec, case: Case, blobs: dict[str, bytes]) -> dict[str, Any]:
        known = dict(case.sizes)
        if absent := [d.name for d in spec.sizes if d.name not in known]:
            raise ValueError(f"kernel '{spec.name}': no size is given for dimension '{absent[0]}'")
        sizes = tuple(known[d.name] for d in spec.sizes)
        numbers = [size // d.multiple for d, size in zip(spec.sizes, sizes, strict=True)]
        spec = spec.at(sizes)
        return {
            "stages": [[stage.symbol, stage.extent] for stage in spec.stages],
            "sizes": numbers,
            "scratch": spec.scratch_bytes,
            "buffers": [self._buffer(buffer, case, blobs) for buffer in spec.buffers],
        }

    def _buffer(self, spec: BufferSpec, case: Case, blobs: dict[str, bytes]) -> dict[str, Any]:
        array = ""
        if spec.role in (BufferRole.INPUT, BufferRole.WEIGHT):
            if not 0 <= spec.source < len(case.inputs):
                raise ValueError(f"buffer '{spec.name}': there is no input {spec.source}")
            array, data = self._array(spec, case.inputs[spec.source])
            blobs[array] = data
        layout = spec.parsed_layout()
        steps, elements = strides(spec.shape, layout, spec.halo)
        factors = zip(layout.resolved(len(spec.shape)), steps, strict=True)
        return {
            "role": spec.role.value,
            "dtype": spec.dtype.value,
            "bytes": spec.bytes,
            "elements": elements,
            "shape": list(spec.shape),
            "halo": [list(pair) for pair in spec.halo],
            # [dimension, divisor, modulus or 0, elements from one slice to the next]
            "factors": [[f.dim, f.div, f.mod or 0, step] for f, step in factors],
            "array": array,
        }

    def _array(self, spec: BufferSpec, source: InputSpec) -> tuple[str, bytes]:
        """Return the digest and the bytes of the array from which a buffer is filled.

        The array is in row-major order and has no halo. `source` has the distribution and the seed
        of its elements.
        """
        plain = replace(spec, name="", layout=str(ROW_MAJOR), halo=(), bytes=0, may_alias=())
        key = source, json.dumps(plain.to_json(), sort_keys=True)
        found = self._arrays.pop(key, None)
        if found is None:
            drawn = source.draw()
            packed = make_weight(plain, drawn) if spec.role is BufferRole.WEIGHT else drawn
            data = np.ascontiguousarray(packed).tobytes()
            found = digest_bytes(data), data
        self._arrays[key] = found
        while len(self._arrays) > 1 and _total(self._arrays) > self._kept_bytes:
            self._arrays.popitem(last=False)
        return found


def plain_programs(
    programs: Sequence[Program], seed: int, given: Sequence[Mapping[str, np.ndarray]]
) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """Create the input arrays for a run of whole programs, and a plan for filling the buffers.

    Args:
        programs: the programs, in the order of the run.
        seed: the seed of random inputs.
        given: for each program, the arrays of inputs that are not random.

    Returns:
        The digests of the plan and of the arrays, and all these blobs by digest.

    Raises:
        ValueError: if a program has dynamic sizes, or accesses memory outside its buffers.
    """
    blobs: dict[str, bytes] = {}
    pairs = zip(programs, given, strict=True)
    plan = {"programs": [_program(program, seed, own, blobs) for program, own in pairs]}
    return _added(blobs, plan), blobs


def _program(
    program: Program, seed: int, given: Mapping[str, np.ndarray], blobs: dict[str, bytes]
) -> dict[str, Any]:
    if program.dimensions:
        raise ValueError(f"program '{program.name}' has dynamic sizes")
    if program.rooms:
        program = program.at({})  # without stated slack capacities
    check_program(program)
    encoded = encode(program)
    drawn = {**draw_inputs(program.inputs, seed), **given}
    arrays = {name: np.ascontiguousarray(array).tobytes() for name, array in drawn.items()}
    blobs |= {digest_bytes(data): data for data in arrays.values()}
    return {
        "code": encoded.code.tolist(),
        "starts": list(encoded.starts),
        "symbols": list(encoded.symbols),
        "natives": list(encoded.natives),
        "references": [[ref.space.value, ref.offset] for ref in encoded.refs],
        "refusals": list(program.refusals),
        "arena": program.arena_bytes,
        "scratch": program.scratch_bytes,
        "weights": program.weight_bytes,
        "inputs": [
            {**_port(port), "array": digest_bytes(arrays[port.name])} for port in program.inputs
        ],
        "outputs": [_port(port) for port in program.outputs],
    }


def _port(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "dtype": port.dtype.value,
        "shape": list(port.shape),
        "bytes": port.bytes,
        "counted": -1 if port.counted is None else port.counted,
    }


def _added(blobs: dict[str, bytes], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Add a plan as JSON to `blobs`, which has the input arrays by digest.

    The plan states which array fills each buffer. Return all digests, the plan's first.
    """
    arrays = tuple(blobs)
    text = json.dumps(plan, separators=(",", ":")).encode()
    digest = digest_bytes(text)
    blobs[digest] = text
    return (digest, *arrays)


def _check_size(elements: int, most: int) -> None:
    if elements > most:
        raise ValueError(
            f"random arrays of {elements} elements are more than the {most} that the device holds"
        )


def _total(arrays: Mapping[Any, tuple[str, bytes]]) -> int:
    return sum(len(data) for _, data in arrays.values())
