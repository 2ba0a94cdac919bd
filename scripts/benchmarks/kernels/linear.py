"""Time products of skipdec's kernels against ONNX Runtime's own nodes on this machine.

    python scripts/benchmarks/kernels/linear.py --shape 2048x8192 --rows 1 8 512 --sets avx2

Weights come from memory, as in a decode step: the graph holds enough copies of the product to
exceed the caches. Repetitions alternate and the minimum counts; both share one thread pool. With
one thread, its own processor time is measured, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time

import ml_dtypes
import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kernels.products import (
    Subgraph,
    block_linear,
    half_linear,
    integer_chain,
    matmul_nbits,
    matrix_product,
    quantized_linear,
    session_of,
)
from skipdec.engines.backends.ort import use_shared_thread_pool
from skipdec.engines.host.processor import processor_name
from skipdec.engines.kernels.library import INSTRUCTION_SET_VARIABLE, require_library

Shape = tuple[int, int]
Builder = Callable[[str, Shape], Subgraph]

BLOCK_SIZES = {4: 32, 8: 64}  # by the bits of a weight
WEIGHT_BYTES = 160 << 20  # all copies together
LEAST_SECONDS = 0.4  # minimum time for each row of the table in each column


def int8_operands(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes [K, N] and scales [N]."""
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, shape, np.int8)
    return codes, random.uniform(0.001, 0.01, shape[1]).astype(np.float32)


def block_operands(shape: Shape, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes [N, blocks, bytes of a block] and scales [N, blocks]."""
    random, (depth, columns) = np.random.default_rng(0), shape
    blocks = -(-depth // BLOCK_SIZES[bits])
    codes = random.integers(0, 256, (columns, blocks, BLOCK_SIZES[bits] * bits // 8), np.uint8)
    return codes, random.uniform(0.001, 0.01, (columns, blocks)).astype(np.float32)


def float_operand(shape: Shape) -> np.ndarray:
    """Return random float32 weights [K, N]."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Comparison:
    """Subgraphs of our operator and of ONNX Runtime's nodes, each made from a name and a shape."""

    ours: Builder
    theirs: Builder
    weight_bytes: float  # one of our weights


def block_comparison(bits: int) -> Comparison:
    """Return products of blocks of weights of ``bits``."""
    return Comparison(
        lambda name, shape: block_linear(name, *block_operands(shape, bits), bits),
        lambda name, shape: matmul_nbits(name, *block_operands(shape, bits), shape[0], bits),
        weight_bytes=bits / 8 + 2 / BLOCK_SIZES[bits],
    )


OPERATORS = {
    "int8": Comparison(
        lambda name, shape: quantized_linear(name, *int8_operands(shape)),
        lambda name, shape: integer_chain(name, *int8_operands(shape)),
        weight_bytes=1,
    ),
    "float16": Comparison(
        lambda name, shape: half_linear(name, float_operand(shape).astype(np.float16)),
        lambda name, shape: matrix_product(name, float_operand(shape)),
        weight_bytes=2,
    ),
    "bfloat16": Comparison(
        lambda name, shape: half_linear(name, float_operand(shape).astype(ml_dtypes.bfloat16)),
        lambda name, shape: matrix_product(name, float_operand(shape)),
        weight_bytes=2,
    ),
    "int4": block_comparison(4),
    "int8-block": block_comparison(8),
}


def main() -> None:
    """Print a table of one operator and shape."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operator", choices=OPERATORS, default="int8")
    parser.add_argument("--shape", type=parse_shape, default=(2048, 8192), metavar="KxN")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 128, 512])
    parser.add_argument("--sets", nargs="+", default=[require_library("this").instruction_set])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    use_shared_thread_pool(arguments.threads)
    operator = OPERATORS[arguments.operator]
    depth, columns = arguments.shape
    weight_bytes = depth * columns * operator.weight_bytes
    copies = max(1, math.ceil(WEIGHT_BYTES / weight_bytes))
    sessions = {"ONNX Runtime": build(operator.theirs, arguments.shape, copies)}
    for name in arguments.sets:
        os.environ[INSTRUCTION_SET_VARIABLE] = name
        sessions[name] = build(operator.ours, arguments.shape, copies)
    print(f"{arguments.operator}, {depth} x {columns}, {arguments.threads} threads of")
    print(f"{processor_name()}; ms per product, minimum of alternating runs\n")
    print(f"| rows | {' | '.join(sessions)} | GB/s | faster |")
    print("|---" * (len(sessions) + 3) + "|")
    for rows in arguments.rows:
        least = [
            seconds / copies
            for seconds in times(list(sessions.values()), rows, depth, arguments.threads)
        ]
        cells = [f"{1e3 * seconds:.3f}" for seconds in least]
        print(
            f"| {rows} | {' | '.join(cells)} | {weight_bytes / least[-1] / 1e9:.1f} "
            f"| {least[0] / least[-1]:.2f}x |",
            flush=True,
        )


def parse_shape(text: str) -> Shape:
    """Parse ``2048x8192`` as (2048, 8192)."""
    depth, columns = text.split("x")
    return int(depth), int(columns)


def build(builder: Builder, shape: Shape, copies: int) -> onnxruntime.InferenceSession:
    """Open a session of ``copies`` products, each with its own weights."""
    return session_of([builder(f"p{number}", shape) for number in range(copies)])


def times(
    sessions: list[onnxruntime.InferenceSession], rows: int, depth: int, threads: int
) -> list[float]:
    """Return the minimum seconds of a run of each session, alternating."""
    clock = thread_time if threads == 1 else perf_counter
    x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
    least = [float("inf")] * len(sessions)
    start = perf_counter()
    while perf_counter() - start < LEAST_SECONDS * len(sessions):
        for number, session in enumerate(sessions):
            begin = clock()
            session.run(None, {"x": x})
            least[number] = min(least[number], clock() - begin)
    return least


if __name__ == "__main__":
    main()
