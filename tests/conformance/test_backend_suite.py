"""The ONNX backend suite on the untuned compiler, in two forms.

Every case is compiled with the default schedules and run; its outputs are compared as the suite
itself compares them. `not_passing.toml` lists the cases that do not pass, by reason: a listed case
that passes fails the test as much as another that does not. Outputs come from kernels that read the
run-time inputs, except where `[folded]` says that they are known at import.
"""

from __future__ import annotations

import signal
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.backend.test.runner import Runner

import tilewright
from tests.conformance.suite import Case, Form, computed, given
from tests.conformance.suite import cases as cases_of_onnx
from tests.shared import made_once, run_folder
from tilewright.compiler.bindings import onnx_backend
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.catalogue import catalogue
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.runtime.native import pinned_random_keys

LIST = Path(__file__).with_name("not_passing.toml")
SHARDS = 24
ML_WITHOUT_CASES = (
    *("Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "Scaler"),
    *("OneHotEncoder", "SVMClassifier", "SVMRegressor", "TreeEnsembleClassifier"),
    *("TreeEnsembleRegressor", "ZipMap"),
)
"""Operators of ai.onnx.ml that the suite has no case of, or only such with text."""

RANDOM = (
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Bernoulli", "Multinomial"),
)
"""Operators whose numbers the suite cannot state."""

OF_SEQUENCES = (
    *("ConcatFromSequence", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
    *("SequenceInsert", "SequenceLength", "SplitToSequence"),
)
"""Operators whose cases have a sequence as an input or an output; within a model they compile."""

SECONDS_A_CASE = 60
"""For a compile and a run; the slowest takes about one second on an idle machine."""

AT_LEAST = {Form.PLAIN: 1200, Form.CONSTANT: 1280}


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Case]:
    """The suite. onnx computes expected outputs by loops in Python, which takes seconds."""
    return made_once(run_folder(tmp_path_factory, worker_id), "onnx-cases", cases_of_onnx)


@cache
def listed(form: Form) -> dict[str, str]:
    """Cases that do not pass in this form, with the reason."""
    reasons: dict[str, str] = {}
    for reason, entry in tomllib.loads(LIST.read_text())["not_passing"].items():
        if form.value in entry.get("forms", [f.value for f in Form]):
            reasons.update(dict.fromkeys(entry["cases"], reason))
    return reasons


@cache
def folded(form: Form) -> frozenset[str]:
    """Cases whose outputs do not depend on any run-time input."""
    entry = tomllib.loads(LIST.read_text())["folded"]
    return frozenset(entry["cases"]) | frozenset(entry.get(form.value, []))


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def native(case: Case, form: Form) -> bool:
    """Run a case; whether kernels made all its outputs from run-time inputs.

    In the form with constants, the values of other inputs may decide nothing.

    Raises:
        AssertionError: if an output is wrong.
        CompilerError: if the model does not compile.
    """
    every = True
    for inputs, outputs in case.data_sets:
        model, feeds = given(case, form, inputs)
        rep = onnx_backend.prepare(model)
        found = rep.run(feeds)
        Runner.assert_similar_outputs(outputs, list(found), case.rtol, case.atol)
        assert form is Form.PLAIN or not rep.decisive, "compiled for the values of data"
        arrays = {name: np.asarray(array) for name, array in feeds.items()}
        every = every and all(computed(rep.executable(arrays).program))
    return every


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("form", Form)
def test_the_cases(cases: dict[str, Case], form: Form, shard: int) -> None:
    wrong: list[str] = []
    expected, constant = listed(form), folded(form)
    for case in list(cases.values())[shard::SHARDS]:
        try:
            # random numbers that differ from run to run could be the expected ones by chance
            with time_limit(SECONDS_A_CASE), pinned_random_keys(), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                made = native(case, form)
        except (AssertionError, CompilerError, TimeoutError) as error:
            if case.name not in expected:
                wrong.append(f"{case.name}: {error}")
            continue
        if case.name in expected:
            wrong.append(f"{case.name} passes: strike it from the list")
        elif made == (case.name in constant):
            source = "kernels" if made else "no kernel that reads an input"
            wrong.append(f"{case.name}: the outputs come from {source}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_references(cases: dict[str, Case], shard: int) -> None:
    """The operators' NumPy references, against which candidates are verified, pass as much."""
    wrong: list[str] = []
    stepwise = tomllib.loads(LIST.read_text())["stepwise"]["cases"]
    for case in list(cases.values())[shard::SHARDS]:
        if case.name in listed(Form.CONSTANT) or case.name in stepwise:
            continue
        for inputs, outputs in case.data_sets:
            model, feeds = given(case, Form.CONSTANT, inputs)
            graph = import_model(with_shapes(model, feeds))
            arrays = {name: raw(array) for name, array in feeds.items()}
            found = run_graph(graph, arrays)
            typed = [
                array.view(np.asarray(theirs).dtype) if mine is DType.BFLOAT16 else array
                for array, theirs, mine in zip(
                    found, outputs, (graph.types[v].dtype for v in graph.outputs), strict=True
                )
            ]
            try:
                Runner.assert_similar_outputs(outputs, typed, case.rtol, case.atol)
            except AssertionError as error:
                wrong.append(f"{case.name}: {error}")
    assert not wrong, "\n".join(wrong)


def raw(array: Any) -> np.ndarray:
    """bfloat16 as its raw bits."""
    array = np.asarray(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def with_shapes(model: ModelProto, feeds: dict[str, Any]) -> ModelProto:
    """The model with the inputs' shapes where it leaves them open."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    for info in fixed.graph.input:
        if info.name in feeds:
            info.type.tensor_type.shape.ClearField("dim")
            for extent in np.shape(feeds[info.name]):
                info.type.tensor_type.shape.dim.add().dim_value = extent
    return fixed


@pytest.mark.parametrize("form", Form)
def test_the_list_names_cases_of_the_suite(cases: dict[str, Case], form: Form) -> None:
    names = set(cases)
    assert not (set(listed(form)) | folded(form)) - names
    assert not set(listed(form)) & folded(form)
    assert len(names) - len(listed(form)) >= AT_LEAST[form]


def test_every_operator_of_the_catalogue_passes_a_case(cases: dict[str, Case]) -> None:
    """Except for operators that the suite has no case of."""
    passing = {op for c in cases.values() if c.name not in listed(Form.PLAIN) for op in c.operators}
    domains = ("ai.onnx", "ai.onnx.ml")
    known = {entry.op_type for entry in catalogue() if entry.domain in domains}
    without = {"GlobalLpPool", "SimplifiedLayerNormalization", *ML_WITHOUT_CASES, *OF_SEQUENCES}
    without |= set(RANDOM)
    assert known - passing == without
    assert passing <= known


def test_no_case_is_listed_twice() -> None:
    entries = tomllib.loads(LIST.read_text())["not_passing"].values()
    counts = Counter(
        (form, name)
        for entry in entries
        for form in entry.get("forms", [f.value for f in Form])
        for name in entry["cases"]
    )
    assert not [key for key, count in counts.items() if count > 1]


def test_what_folds_is_not_counted_as_computed() -> None:
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))]
    results = [helper.make_empty_tensor_value_info(name) for name in ("shape", "y", "z")]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Reshape", ["y", "shape"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "m", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert computed(tilewright.compile_model(model).program) == [False, True, True]


def test_operators_without_a_rule_are_refused_by_name() -> None:
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 1, 4, 4)), ("rois", (1, 5)), ("y", (1, 1, 1, 1)))
    ]
    node = helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[1, 1])
    graph = helper.make_graph([node], "m", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(CompilerError, match="MaxRoiPool"):
        onnx_backend.prepare(model)
