"""``skipdec-config``: flags of libskipdec for compilers and CMake."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence

from ...engines.errors import EnvironmentMismatchError
from ...engines.host.installation import own_version
from .paths import NativePaths, native_paths

_FACTS: dict[str, tuple[str, Callable[[NativePaths], str]]] = {  # option → help, output
    "cflags": ("for compiling", lambda paths: shlex.quote(f"-I{paths.include_directory}")),
    "libs": ("for linking, with an rpath to the library", lambda paths: _libs(paths)),
    "cmakedir": ("for cmake -Dskipdec_DIR=", lambda paths: str(paths.cmake_directory)),
    "includedir": ("folder of skipdec/skipdec.h", lambda paths: str(paths.include_directory)),
    "libdir": ("folder of libskipdec.so.1", lambda paths: str(paths.library.parent)),
    "pkgconfigdir": ("for PKG_CONFIG_PATH", lambda paths: str(paths.pkg_config_directory)),
    "version": ("of skipdec", lambda paths: own_version()),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the requested flags in order on one line; entry point of ``skipdec-config``."""
    parser = argparse.ArgumentParser(
        "skipdec-config",
        description="Flags and folders of libskipdec, e.g. c++ a.cpp $(skipdec-config --cflags "
        "--libs), or cmake -Dskipdec_DIR=$(skipdec-config --cmakedir) ...",
        allow_abbrev=False,
    )
    for name, (meaning, _) in _FACTS.items():
        parser.add_argument(
            f"--{name}", dest="facts", action="append_const", const=name, help=meaning
        )
    facts = parser.parse_args(arguments).facts
    if not facts:
        parser.error(f"one of --{', --'.join(_FACTS)} is needed")
    try:
        paths = native_paths()
    except EnvironmentMismatchError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    print(" ".join(_FACTS[name][1](paths) for name in facts))


def _libs(paths: NativePaths) -> str:
    folder = paths.library.parent
    return shlex.join([f"-L{folder}", f"-Wl,-rpath,{folder}", f"-l:{paths.library.name}"])
