"""Compiles engines/kernels/native where there is a C++ compiler; pyproject.toml says the rest."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

NATIVE = Path("engines/kernels/native")

KERNELS = Extension(
    # A library for ONNX Runtime, loaded by path and never imported.
    "skipdec.engines.kernels._native",
    sources=sorted(map(str, NATIVE.rglob("*.cpp"))),
    depends=sorted(map(str, NATIVE.rglob("*.h"))),
    include_dirs=[str(NATIVE)],
    language="c++",
    py_limited_api=True,
    optional=True,
    # Files of one instruction set say so themselves, so that one set of flags does. Warnings are
    # errors only where CXXFLAGS says so: another compiler's new warning must not cost a user the
    # kernels.
    extra_compile_args=[
        "-std=c++17",
        *(() if "-O" in os.environ.get("CXXFLAGS", "") else ("-O3",)),
        "-ffp-contract=off",  # a product and a sum round twice, as ONNX Runtime's own nodes do
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-MMD",
    ],
)


class BuildKernels(build_ext):
    """Compiles only what changed, side by side; without a compiler, says what follows."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the sources, each into an object that later builds use again, and link them."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # an older one must not pass for this one
        compiler = self.compiler.compiler_so_cxx
        command = repr([*compiler, *ext.extra_compile_args])
        folder = Path("build", "kernels", sha256(command.encode()).hexdigest()[:12])
        sources, ext.sources = ext.sources, []
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                ext.extra_objects = list(pool.map(partial(self._object, ext, folder), sources))
            super().build_extension(ext)
        except (BaseError, CCompilerError):
            self.warn(
                f"skipdec's kernels are left out: {compiler[0]} is missing or failed, see above; "
                "ONNX Runtime's operators do their work, slower. For the kernels, install g++ or "
                "clang++, or name one by CXX, and install skipdec again"
            )
        finally:
            ext.sources = sources

    def _object(self, ext: Extension, folder: Path, source: str) -> str:
        """The object of one source, compiled if it is older than what it was compiled from."""
        found = folder / Path(source).with_suffix(".o")
        if not _is_current(found):
            found.unlink(missing_ok=True)
            self.compiler.compile(
                [source],
                output_dir=str(folder),
                include_dirs=ext.include_dirs,
                extra_postargs=ext.extra_compile_args,
            )
        return str(found)

    def copy_extensions_to_source(self) -> None:
        """Beside the sources, too, no older library must pass for one that failed to compile."""
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            copy, built = self._get_inplace_equivalent(build_py, ext)
            if not Path(built).exists():
                Path(copy).unlink(missing_ok=True)
        super().copy_extensions_to_source()


class KernelWheel(bdist_wheel):
    """Named after what is inside: the kernels need no certain Python, and without them, nothing."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tags for interpreter, its ABI, and platform."""
        library = self.get_finalized_command("build_ext").get_ext_fullpath(KERNELS.name)
        return "py3", "none", super().get_tag()[2] if Path(library).exists() else "any"


def _is_current(found: Path) -> bool:
    """Whether no file that the compiler read, as its -MMD notes say, is newer or gone."""
    notes = found.with_suffix(".d")
    if not (found.exists() and notes.exists()):
        return False
    read = notes.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    made = found.stat().st_mtime
    return all(Path(file).exists() and Path(file).stat().st_mtime < made for file in read)


if __name__ == "__main__":
    setup(
        script_name="setup.py",  # so named, it is no module of the package around it
        ext_modules=[KERNELS],
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": KernelWheel},
    )
