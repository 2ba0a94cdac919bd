"""libskipdec's passes of several tokens per row have the bits of one at a time, and Python's."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from known_tokens import (
    KV_BYTES,
    Operation,
    alone,
    draw_texts,
    fed_stitcher,
    known_bits,
    together,
)
from programs import built_program
from runtimes import LIBRARY, plan_text

from skipdec.engines.kernels.library import find_library

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")
TEXTS = draw_texts(4, 8)


def run_native(bundle: Path, operations: Sequence[Operation]) -> list[list[str]]:
    done = subprocess.run(
        [built_program("passes"), bundle, "4", str(KV_BYTES)],
        input="\n".join(json.dumps(_planned(operation)) for operation in operations),
        env=os.environ | {"SKIPDEC_ONNXRUNTIME": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _planned(operation: Operation) -> Operation:
    """Write schedules as plans, which is how libskipdec reads them."""
    match operation:
        case {"begin": row}:
            return {"begin": row | {"schedule": _plan(row)}}
        case {"step": rows}:
            return {"step": [row | {"schedule": _plan(row)} for row in rows]}
    return operation


def _plan(row: dict[str, Any]) -> str:
    return plan_text(row["schedule"], 6, 8)


@needs_kernels
@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_several_tokens_have_the_bits_of_one(exported: Callable[..., Path], kv_dtype: str) -> None:
    bundle = exported("pre_norm", kernels="skipdec", quantize="int8", kv_dtype=kv_dtype)
    one = alone(TEXTS)
    with fed_stitcher(bundle) as python:
        expected = known_bits(TEXTS, one, python.run(one))
    assert known_bits(TEXTS, one, run_native(bundle, one)) == expected
    for width in (2, 3, 8):
        operations = together(TEXTS, width, seed=width)
        assert known_bits(TEXTS, operations, run_native(bundle, operations)) == expected


def test_engines_of_onnxruntime_run_the_same_passes_as_python(
    exported: Callable[..., Path],
) -> None:
    bundle, operations = exported("pre_norm"), together(TEXTS, 3, seed=1)
    with fed_stitcher(bundle) as python:
        expected = python.run(operations)
    assert run_native(bundle, operations) == expected
