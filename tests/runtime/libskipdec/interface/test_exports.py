"""The library exports the functions of skipdec.h and nothing else: no kernels, no C++."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from programs import FOLDER, built_program

RUNTIME = Path(__file__).parents[4] / "runtime" / "native"


def functions_of_the_header() -> set[str]:
    text = (RUNTIME / "include" / "skipdec" / "skipdec.h").read_text(encoding="utf-8")
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return set(re.findall(r"SKIPDEC_API\b[^;(]*?\b(skipdec_\w+)\(", code))


def test_the_map_names_every_function_of_the_header() -> None:
    exported = re.search(r"global:(.*?)local:", (RUNTIME / "skipdec.map").read_text(), re.DOTALL)
    assert exported
    assert set(re.findall(r"\w+", exported[1])) == functions_of_the_header()


def test_the_library_exports_what_the_map_names() -> None:
    built_program("skipdec")
    listed = ["nm", "--dynamic", "--defined-only", str(FOLDER / "libskipdec.so")]
    symbols = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
    assert names == functions_of_the_header() | {"SKIPDEC_1"}
