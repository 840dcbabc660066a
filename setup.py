"""Build the C runtime and the generated files; all other settings are in pyproject.toml.

The library contains no Python module: `compiler.runtime.native` loads it with ctypes, so that
building it needs no Python headers. It is compiled here and not on the device.
"""

import runpy
from glob import glob

from setuptools import Extension, setup

NATIVE = "tilewright/compiler/runtime/native"

# before the packages are listed: generated files are not kept in git
for generator in ("service/client/generate.py", "tuner/protocol/generate.py"):
    runpy.run_path(f"tilewright/{generator}", run_name="__main__")

setup(
    ext_modules=[
        Extension(
            "tilewright.compiler.runtime._native",
            sources=sorted(glob(f"{NATIVE}/*.c")),
            depends=sorted(glob(f"{NATIVE}/*.h")),
            extra_compile_args=[
                "-std=c11",
                "-D_GNU_SOURCE",
                "-O2",
                "-fvisibility=hidden",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
        )
    ]
)
