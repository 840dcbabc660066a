"""Export of PyTorch modules as ONNX files or artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from tilewright.compiler.bindings.torch.decomposed import DECOMPOSITIONS
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Translated, rules, translate
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError
from tilewright.compiler.frontend.model_file import write_model
from tilewright.compiler.options import CompileOptions


def export(
    module: torch.nn.Module,
    args: Sequence[Any],
    path: str | PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    output_names: Sequence[str] | None = None,
    options: CompileOptions | None = None,
) -> Path:
    """Write a module as an ONNX file, or compile it to an artifact.

    Args:
        module: the module, exported in its current mode: call `module.eval()` first for inference.
        args, kwargs: example inputs; the model's inputs are named after the parameters of
            `module.forward`.
        path: where to write. A path that ends in `.onnx` selects an ONNX file; any other path is
            the new folder of an artifact.
        dynamic_shapes: the dynamic dimensions, in the format of `torch.export.export`. An artifact
            supports the sizes within the bounds that PyTorch states for a dimension.
        output_names: names of the output tensors; by default `output_0` and so on.
        options: compile options of an artifact, such as threads and precision.

    Returns:
        `path` as a Path.

    Raises:
        InvalidArgumentError: if one tensor is passed twice.
        NotTranslatedError: if an operator has no translation to ONNX; the message names it.
        ArtifactError: if the artifact's folder already exists, or if linking or writing it fails.
        CompilerError: if the model does not compile.
    """
    translated = exported(module, args, kwargs, dynamic_shapes, output_names)
    target = Path(path)
    if target.suffix == ".onnx":
        write_model(translated.model, target)
        return target
    from tilewright.compiler.driver import compile_with

    if target.exists():
        raise ArtifactError(f"'{target}' already exists")
    given = options or CompileOptions()
    compile_with(translated.model, replace(given, dims={**translated.ranges, **given.dims}), target)
    if not target.exists():
        raise ArtifactError(f"'{target}' could not be linked, written, or has several programs")
    return target


def exported(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    output_names: Sequence[str] | None = None,
) -> Translated:
    """Translate a module to an ONNX model in memory.

    The arguments have the same meaning as in `export`.

    Raises:
        InvalidArgumentError: if one tensor is passed twice.
        NotTranslatedError: if an operator has no translation to ONNX; the message names it.
    """
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    tensors = [id(each) for each in leaves if isinstance(each, torch.Tensor)]
    if len(set(tensors)) < len(tensors):  # torch.export would confuse the two arguments
        raise InvalidArgumentError("one tensor is passed for two inputs: clone one of them")
    with torch.no_grad():
        program = torch.export.export(
            module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes
        )
        table = torch.export.default_decompositions()
        for op in rules():
            if op in table:
                del table[op]
        table.update(DECOMPOSITIONS)
        program = program.run_decompositions(table)
    signature = program.graph_signature
    constants: dict[int, torch.Tensor] = {}
    names: dict[int, str] = {}
    for position, spec in enumerate(signature.input_specs):
        match spec.kind:
            case InputKind.USER_INPUT:
                names[position] = spec.arg.name
            case InputKind.PARAMETER:
                constants[position] = program.state_dict[spec.target]
            case InputKind.BUFFER if spec.persistent:
                constants[position] = program.state_dict[spec.target]
            case InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                constants[position] = program.constants[spec.target]
            case _:
                raise NotTranslatedError(f"an input of kind {spec.kind.name}")
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise NotTranslatedError(
                f"the module writes to '{spec.target}', which a model cannot: {spec.kind.name}"
            )
    return translate(
        program.graph,
        constants,
        lambda name: getattr(program.graph_module, name),
        names,
        output_names,
        program.range_constraints,
        is_exported=True,
    )
