"""Compile kernels and libskipdec if there is a C++ compiler; pyproject.toml has the metadata."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import groupby
from json import loads
from pathlib import Path
from runpy import run_path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, OptionError

KERNEL_SOURCES = Path("engines/kernels/native")
RUNTIME = Path("runtime/native")  # in the tree and in the package, which adds lib/ and bin/
SONAME = "libskipdec.so.1"
CONSTANTS = Path("engines/constants/constants.json")
GENERATED = Path("build/native/generated")  # constants.h
COMPILED = Path("build/kernels")  # objects that later builds reuse
SWITCH = "SKIPDEC_LIBSKIPDEC"  # 0 in the environment skips libskipdec

# Sources that enable an instruction set for all code after them, so that each needs its own unit.
INSTRUCTION_SETS = {"portable", "neon", "avx2", "avxvnni", "avx512", "avx512vnni", "amx"}

CXXFLAGS = os.environ.get("CXXFLAGS", "")
# Files of one instruction set enable it themselves, so that one set of flags is enough. Warnings
# are errors only with SKIPDEC_WARNINGS_AS_ERRORS=1: a new warning of another compiler must not cost
# a user the kernels.
COMPILE = [
    "-std=c++17",
    *(() if "-O" in CXXFLAGS else ("-O3",)),
    *(() if "-g" in CXXFLAGS else ("-g0",)),  # Python's own flags contain -g
    "-ffp-contract=off",  # round products and sums separately, as ONNX Runtime's nodes do
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-MMD",
]
COLD = [] if "-O" in CXXFLAGS else ["-O1"]  # the programs only parse options and print results
# Leaves out unused parts of nlohmann/json.hpp, which take a quarter of its compile time.
LEAN_JSON = ["-DJSON_NO_IO", "-DJSON_HAS_FILESYSTEM=0", "-DJSON_HAS_EXPERIMENTAL_FILESYSTEM=0"]
KERNELS = Extension(
    # A library for ONNX Runtime, loaded by path and never imported.
    "skipdec.engines.kernels._native",
    sources=sorted(map(str, KERNEL_SOURCES.rglob("*.cpp"))),
    depends=sorted(map(str, KERNEL_SOURCES.rglob("*.h"))),
    language="c++",
    py_limited_api=True,
    optional=True,
)


class BuildNative(build_ext):
    """Compiles changed sources in parallel and reports the effects of missing tools."""

    def run(self) -> None:
        """Build the kernels, then libskipdec, which includes them."""
        super().run()
        self._build_runtime(RUNTIME if self.inplace else self._packaged_runtime())

    def finalize_options(self) -> None:
        """Refuse an invalid switch before anything is compiled."""
        super().finalize_options()
        if (switch := os.environ.get(SWITCH, "1")) not in ("0", "1"):
            raise OptionError(f"{SWITCH} is {switch!r}; allowed: 0 to leave libskipdec out, or 1")

    def get_source_files(self) -> list[str]:
        """Return the C++ files of an sdist."""
        made = (RUNTIME / "bin", RUNTIME / "lib")
        files = [file for file in RUNTIME.rglob("*") if file.is_file()]
        kept = [str(file) for file in files if not any(map(file.is_relative_to, made))]
        return [*super().get_source_files(), *sorted(kept), str(CONSTANTS)]

    def build_extension(self, ext: Extension) -> None:
        """Compile each source into an object that later builds reuse, and link them."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # an older library must not be mistaken for this one
        sources, ext.sources = ext.sources, []
        try:
            ext.extra_objects = self._kernel_objects(sources)
            super().build_extension(ext)
        except (BaseError, CCompilerError):
            self.warn(
                f"skipdec's kernels are left out: {self._compiler()} is missing or failed, see "
                "above; ONNX Runtime's slower operators replace them. For the kernels, install "
                "g++ or clang++, or set CXX to one, and reinstall skipdec"
            )
        finally:
            ext.sources = sources

    def copy_extensions_to_source(self) -> None:
        """Delete older libraries beside the sources if compiling failed, then copy the new ones."""
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            copy, built = self._get_inplace_equivalent(build_py, ext)
            if not Path(built).exists():
                Path(copy).unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def has_native(self) -> bool:
        """Return True if the built package contains anything compiled."""
        built = (
            Path(self.get_ext_fullpath(KERNELS.name)),
            self._packaged_runtime() / "lib" / SONAME,
        )
        return any(file.exists() for file in built)

    def _packaged_runtime(self) -> Path:
        return Path(self.build_lib, "skipdec", RUNTIME)

    def _build_runtime(self, prefix: Path) -> None:
        """Build libskipdec and all that C++ programs need below ``prefix``, if possible."""
        self._objects_list().unlink(missing_ok=True)
        made = ("bin", "lib") if prefix == RUNTIME else ("bin", "lib", "include")
        for folder in made:
            shutil.rmtree(prefix / folder, ignore_errors=True)
        if not sys.platform.startswith("linux"):
            return
        if os.environ.get(SWITCH) == "0":
            self.warn(
                f"libskipdec, the runtime for C++ programs, is left out, as {SWITCH}=0 asks; for "
                "libskipdec, unset it and reinstall skipdec"
            )
            return
        json = _include_json()
        if json is None:
            self.warn(
                "libskipdec, the runtime for C++ programs, is left out: nlohmann/json.hpp was not "
                "found; Python works without it. To get it, run `pip install nlohmann_json`, or "
                "set NLOHMANN_JSON_INCLUDE_DIR to its folder, and reinstall skipdec"
            )
            return
        try:
            self._link_runtime(prefix, json)
        except (BaseError, CCompilerError):
            shutil.rmtree(prefix / "lib", ignore_errors=True)
            self.warn(
                f"libskipdec, the runtime for C++ programs, is left out: {self._compiler()} is "
                "missing or failed, see above; Python works without it. To get it, install g++ or "
                "clang++, or set CXX to one, and reinstall skipdec"
            )
        else:
            _copy_interface(prefix, self.distribution.get_version())
            if self.inplace:
                _link_onnxruntime(prefix)

    def _link_runtime(self, prefix: Path, json: list[str]) -> None:
        version = f'-DSKIPDEC_VERSION="{self.distribution.get_version()}"'
        public = [f"-I{RUNTIME / 'include'}"]
        _generate_constants()
        private = [*public, f"-I{RUNTIME / 'src'}", f"-I{KERNEL_SOURCES}", f"-I{GENERATED}", *json]
        objects = self._kernel_objects(KERNELS.sources)
        objects += self._objects(_units(RUNTIME.glob("src/**/*.cpp")), [*COMPILE, version], private)
        library = str(prefix / "lib" / SONAME)
        exports = f"-Wl,--version-script={RUNTIME / 'skipdec.map'},-soname,{SONAME},-z,defs"
        self.compiler.link_shared_object(
            objects,
            library,
            libraries=["dl"],
            extra_postargs=["-pthread", exports],
            target_lang="c++",
        )
        listed = self._objects_list()
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{Path(each).absolute()}\n" for each in objects))
        apps = sorted(RUNTIME.glob("apps/*.cpp"))
        mains = self._objects(map(str, apps), [*COMPILE, *COLD, version], [*public, *json])
        for source, main in zip(apps, mains, strict=True):
            self.compiler.link_executable(
                [main],
                source.stem.replace("_", "-"),
                output_dir=str(prefix / "bin"),
                extra_postargs=[library, "-pthread", "-Wl,-rpath,$ORIGIN/../lib"],
                target_lang="c++",
            )

    def _objects_list(self) -> Path:
        """Return the file that lists all objects in libskipdec, for its tests."""
        return Path(self.build_temp, "objects")

    def _kernel_objects(self, sources: Iterable[str]) -> list[str]:
        units = _units(map(Path, sources))
        return self._objects(units, COMPILE, [f"-I{KERNEL_SOURCES}"])

    def _objects(self, sources: Iterable[str], flags: list[str], include: list[str]) -> list[str]:
        """Compile an object of each source; changes of ``include`` do not recompile objects."""
        command = repr([*self.compiler.compiler_so_cxx, *flags])
        folder = COMPILED / sha256(command.encode()).hexdigest()[:12]
        with ThreadPoolExecutor(_processors()) as pool:
            return list(pool.map(partial(self._object, folder, [*flags, *include]), sources))

    def _object(self, folder: Path, flags: list[str], source: str) -> str:
        """Return the object of one source, compiled if any of its inputs is newer."""
        found = folder / Path(source).with_suffix(".o")
        if not _is_current(found):
            found.unlink(missing_ok=True)
            strict = ["-Werror"] if os.environ.get("SKIPDEC_WARNINGS_AS_ERRORS") == "1" else []
            self.compiler.compile([source], output_dir=str(folder), extra_postargs=flags + strict)
        return str(found)

    def _compiler(self) -> str:
        return str(self.compiler.compiler_so_cxx[0])


class NativeWheel(bdist_wheel):
    """A wheel for any Python 3, tagged with the platform only if it contains libraries."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tags for interpreter, ABI and platform."""
        has_native = self.get_finalized_command("build_ext").has_native()
        return "py3", "none", super().get_tag()[2] if has_native else "any"


def _units(sources: Iterable[Path]) -> list[str]:
    """Return units to compile for ``sources``: one per folder and one per instruction set."""
    ordered = sorted(sources, key=lambda source: (source.parent, source.name))
    alone = [str(source) for source in ordered if source.stem in INSTRUCTION_SETS]
    others = [source for source in ordered if source.stem not in INSTRUCTION_SETS]
    folders = groupby(others, key=lambda source: source.parent)
    return [*alone, *(_joined(folder, list(found)) for folder, found in folders)]


def _joined(folder: Path, sources: list[Path]) -> str:
    """Write a source that includes ``sources``, so that headers and templates are compiled once.

    Names in anonymous namespaces must differ within a folder. The file is only written if its text
    changes, so that its object stays current.
    """
    unit = COMPILED / "units" / folder.with_suffix(".cpp")
    up = "../" * len(unit.parent.parts)
    text = "".join(f'#include "{up}{source.as_posix()}"\n' for source in sources)
    if not unit.exists() or unit.read_text() != text:
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(text)
    return str(unit)


def _processors() -> int:
    """Return the number of usable processors, by affinity and control groups."""
    # The package can't be imported yet.
    cores: int = run_path("src/skipdec/engines/host/processor.py")["available_cores"]()
    return cores


def _include_json() -> list[str] | None:
    """Return the compiler's arguments for nlohmann/json.hpp; None if it is missing."""
    named = os.environ.get("NLOHMANN_JSON_INCLUDE_DIR")
    package = None if named else find_spec("nlohmann_json")  # the headers' wheel on PyPI
    packaged = (package.submodule_search_locations if package else None) or ()
    searched = [Path(named)] if named else [Path(each, "include") for each in packaged]
    for folder in searched:
        if (folder / "nlohmann" / "json.hpp").exists():
            return ["-isystem", str(folder), *LEAN_JSON]
    system = () if named else (Path("/usr/include"), Path("/usr/local/include"))
    in_system = any((each / "nlohmann" / "json.hpp").exists() for each in system)
    return LEAN_JSON if in_system else None


def constants_header(document: Mapping[str, int | str | list[str]]) -> str:
    """Return the text of constants.h, which `cmake/constants.cmake` writes for CMake."""
    lines = []
    for key, value in sorted(document.items()):
        name = "k" + "".join(word.capitalize() for word in key.split("_"))
        if isinstance(value, int):
            lines.append(f"inline constexpr std::int64_t {name} = {value};")
        elif isinstance(value, str):
            lines.append(f"inline constexpr std::string_view {name} = {_quoted(value)};")
        else:
            entries = ", ".join(map(_quoted, value))
            kind = f"std::array<std::string_view, {len(value)}>"
            lines.append(f"inline constexpr {kind} {name} = {{{entries}}};")
    includes = "".join(f"#include <{name}>\n" for name in ("array", "cstdint", "string_view"))
    body = "\n".join(lines)
    return (
        f"// Generated from {CONSTANTS}.\n#pragma once\n\n{includes}\n"
        f"namespace skipdec::constants {{\n\n{body}\n\n}}  // namespace skipdec::constants\n"
    )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _generate_constants() -> None:
    """Write constants.h where its text has changed, so that objects stay current otherwise."""
    header, text = GENERATED / "constants.h", constants_header(loads(CONSTANTS.read_text()))
    if not header.exists() or header.read_text() != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text)


def _copy_interface(prefix: Path, version: str) -> None:
    """Write headers and the files for CMake and pkg-config below ``prefix``."""
    if prefix != RUNTIME:
        shutil.copytree(RUNTIME / "include", prefix / "include", dirs_exist_ok=True)
    for template in sorted(RUNTIME.glob("cmake/*.in")):
        name = template.name.removesuffix(".in")
        folder = prefix / "lib" / ("pkgconfig" if name.endswith(".pc") else "cmake/skipdec")
        folder.mkdir(parents=True, exist_ok=True)
        text = template.read_text().replace("@SKIPDEC_VERSION@", version)
        (folder / name).write_text(text.replace("@SKIPDEC_INCLUDE@", "../include"))


def _link_onnxruntime(prefix: Path) -> None:
    """Link the ONNX Runtime of the environment of an editable install, for libskipdec to find.

    It looks for ``onnxruntime/capi`` beside itself; a regular install has it beside the package.
    """
    packages = Path(sysconfig.get_path("platlib"))  # the environment's, even in an isolated build
    (prefix / "lib" / "onnxruntime").symlink_to(packages / "onnxruntime")


def _is_current(found: Path) -> bool:
    """Return True if no file that the compiler read, according to -MMD, is newer or missing."""
    notes = found.with_suffix(".d")
    if not (found.exists() and notes.exists()):
        return False
    read = notes.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    made = found.stat().st_mtime
    return all(Path(file).exists() and Path(file).stat().st_mtime < made for file in read)


if __name__ == "__main__":
    setup(
        script_name="setup.py",  # otherwise it would be a module of the package around it
        ext_modules=[KERNELS],
        cmdclass={"build_ext": BuildNative, "bdist_wheel": NativeWheel},
    )
