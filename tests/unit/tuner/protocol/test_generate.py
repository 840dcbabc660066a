"""The numbers and words that C and JavaScript share with Python are those of the modules."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from enum import EnumType
from pathlib import Path
from typing import Any

import pytest

from tilewright.tuner.measure.harness.binary import host_compiler
from tilewright.tuner.protocol.generate import (
    HEADER,
    MODULE,
    SHARED,
    c_header,
    javascript_module,
    macro,
    shared_definitions,
    write_messages,
)


def values() -> dict[str, Any]:
    """The shared names with the values that the modules have."""
    found: dict[str, Any] = {}
    for path, names in SHARED.items():
        module = importlib.import_module("tilewright." + path.removesuffix(".py").replace("/", "."))
        for name in names:
            value = getattr(module, name)
            words = isinstance(value, EnumType)
            found[name] = {each.name: each.value for each in value} if words else value
    return found


def test_definitions_are_parsed_as_python_evaluates_them() -> None:
    assert dict(shared_definitions()) == values()


def test_a_compiler_reads_the_numbers_and_words_of_the_modules(tmp_path: Path) -> None:
    source, program = tmp_path / "print.c", tmp_path / "print"
    lines = ["#include <stdint.h>", "#include <stdio.h>", f'#include "{HEADER}"']
    lines += ['#define PRINT(name, number) printf("%s %d\\n", name, number);', "int main(void) {"]
    expected: list[str] = []
    for name, value in values().items():
        if not isinstance(value, dict):
            lines.append(f'printf("%.17g\\n", (double){name});')
            expected.append(f"{value:.17g}")
        elif name.isupper():
            lines.append(f"{name}(PRINT)")
            expected += [f"{key} {number}" for key, number in value.items()]
        else:
            lines += [f"puts({macro(name, key)});" for key in value]
            expected += value.values()
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run([*host_compiler(), str(source), "-o", str(program)], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == expected


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_javascript_imports_the_numbers_and_words_of_the_modules() -> None:
    script = f"import * as all from {json.dumps(str(MODULE))}; console.log(JSON.stringify(all));"
    command = ["node", "--input-type=module", "-e", script]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == values()


def test_files_that_are_up_to_date_stay(tmp_path: Path) -> None:
    header, module = tmp_path / "messages.h", tmp_path / "messages.mjs"
    header.write_text("outdated")
    write_messages(header, module)
    definitions = dict(shared_definitions())
    assert header.read_text() == c_header(definitions) == HEADER.read_text()
    assert module.read_text() == javascript_module(definitions) == MODULE.read_text()
    written = header.stat(), module.stat()
    write_messages(header, module)
    assert (header.stat(), module.stat()) == written
    assert {path.name for path in tmp_path.iterdir()} == {"messages.h", "messages.mjs"}
