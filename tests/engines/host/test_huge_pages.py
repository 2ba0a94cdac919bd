"""A program that asks for huge pages restarts once, keeping its arguments and exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from skipdec.engines.host.processor import restart_with_huge_pages
restart_with_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
sys.exit(7)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_the_restart_sets_the_tunable_unless_the_user_did(before: str, after: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "an argument", "-x"],
        env=os.environ | {"GLIBC_TUNABLES": before},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stdout == f"{after} ['an argument', '-x']\n"
    assert process.returncode == 7
