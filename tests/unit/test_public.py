"""`import tilewright`: the public names, each imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilewright


def test_importing_the_package_imports_nothing_else() -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; import tilewright; "
    code += "found = {name.split('.')[0] for name in sys.modules}; "
    code += "print(found - set(sys.stdlib_module_names) - {'__main__'})"
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'tilewright'}"


@pytest.mark.parametrize("name", sorted(set(tilewright.__all__) - {"torch_backend"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tilewright, name) is not None
    assert name in dir(tilewright)


def test_another_name_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'tilewright' has no attribute 'compile_modle'"):
        tilewright.compile_modle  # noqa: B018 - the access is the test


def test_versions_agree() -> None:
    from importlib.metadata import version

    assert tilewright.__version__ == version("tilewright")
