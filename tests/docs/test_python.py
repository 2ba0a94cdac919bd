"""The program in docs/guides/python.md runs as written."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_rows import write_examples
from page_blocks import blocks, run_python


@pytest.mark.slow
@pytest.mark.pages
def test_the_program_tunes_exports_evaluates_fits_and_writes(tmp_path: Path) -> None:
    (program,) = blocks("docs/guides/python.md", "python")
    write_examples(tmp_path)
    lines = run_python(program, tmp_path).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["full", "2x", "3x"]
    assert lines[-1].count(" ") >= 4  # a sentence; its words differ between processors
