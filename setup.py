"""Build the C runtime, the harness and generated files; all other settings are in pyproject.toml.

The C runtime is not a Python extension module: `compiler.runtime.native` loads it with ctypes.
Therefore, Python headers are not needed. Building it here means that devices need no C compiler.
The measurement harness for this machine is a program, which is built into the folder of its
sources.
"""

import runpy
import subprocess
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "tilewright/compiler/runtime/native"

# generated files are not in git, and must exist before setuptools lists the packages
for generator in ("service/client/generate.py", "tuner/protocol/generate.py"):
    runpy.run_path(f"tilewright/{generator}", run_name="__main__")

sys.path.insert(0, str(Path(__file__).parent))
from tilewright.tuner.measure.harness.binary import build_into_package  # noqa: E402


class BuildExtensions(build_ext):
    """The command `build_ext`, which also builds the measurement harness.

    If the harness does not compile here, it is compiled on first use.
    """

    def run(self) -> None:
        super().run()
        if sys.platform != "linux":
            return
        library = self.get_ext_fullpath("tilewright.tuner.measure.harness.any")
        try:
            build_into_package(Path(library).parent)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            self.warn(f"the harness is not built: {said.decode(errors='replace')}")


setup(
    cmdclass={"build_ext": BuildExtensions},
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
    ],
)
