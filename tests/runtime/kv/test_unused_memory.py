"""Unused positions of a cache may hold anything on a CPU, as docs/bundle-format.md says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from poisoned_caches import poison_caches
from random_requests import draw, texts, together

from skipdec import Generator
from skipdec.engines.kernels.library import find_library

needs_kernels = pytest.mark.skipif(find_library() is None, reason="the kernels were not compiled")


@pytest.mark.parametrize(
    "options",
    [
        {"kernels": "onnxruntime"},
        {"kernels": "onnxruntime", "quantize": "int8"},
        {"kernels": "onnxruntime", "dtype": "float16"},
        {"kernels": "auto"},
        {"kernels": "auto", "quantize": "int8"},
        pytest.param(
            {"kernels": "auto", "quantize": "int8", "kv_dtype": "bfloat16"}, marks=needs_kernels
        ),
        pytest.param(
            {"kernels": "auto", "quantize": "int8", "kv_dtype": "int8"}, marks=needs_kernels
        ),
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_unused_memory_of_any_bytes_is_never_read(
    exported: Callable[..., Path], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fill every type of cache with NaN; run ragged prompts, chunks, prefixes, changing rows."""
    wanted = draw(17, 30)
    with Generator.open(exported("pre_norm", **options), threads=1, max_batch_size=4) as generator:
        expected = [texts(output) for output in together(generator, wanted)]
        generator.trim()
        poisoned = poison_caches(monkeypatch)
        assert [texts(output) for output in together(generator, wanted)] == expected
        assert len(poisoned) > 3
