"""The GoogleTest program of src/json."""

from __future__ import annotations

import subprocess

from programs import built_program

SOURCES = ("json/events.cpp", "json/tree.cpp", "json/parse.cpp")


def test_json_is_read_within_its_limits() -> None:
    program = built_program(
        "json_test.cpp", SOURCES, libraries=("-lgtest", "-lgtest_main", "-pthread")
    )
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
