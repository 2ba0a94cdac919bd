"""Time Attention against ONNX Runtime's GroupQueryAttention in float32 on this machine.

    python scripts/benchmarks/kernels/attention.py --cell 8x1x1024 1x512x512 --threads 2

A cell is ROWSxTOKENSxLENGTH: that many new tokens in each row, on a cache that then holds LENGTH.
The graph has enough layers to exceed the processor's caches, as in a decode step. Repetitions
alternate and the minimum counts; all sessions share one thread pool.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np
import onnxruntime
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from skipdec.engines.backends.ort import session_options, use_shared_thread_pool
from skipdec.engines.host.processor import processor_name
from skipdec.engines.kernels.library import DOMAIN, INSTRUCTION_SET_VARIABLE, require_library

Cell = tuple[int, int, int]

CACHE_BYTES = 128 << 20  # all layers together, in float32
LEAST_SECONDS = 0.5  # minimum time for each cell in each column
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
}


def main() -> None:
    """Print a table of cells."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cells = [(1, 1, 160), (1, 1, 1024), (8, 1, 160), (8, 1, 1024), (1, 512, 512)]
    parser.add_argument("--cell", type=parse_cell, nargs="+", default=cells, metavar="BxSxT")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-size", type=int, default=64)
    parser.add_argument("--set", default=require_library("this").instruction_set)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ[INSTRUCTION_SET_VARIABLE] = arguments.set
    use_shared_thread_pool(arguments.threads)
    clock = thread_time if arguments.threads == 1 else perf_counter
    print(f"{arguments.heads} heads of {arguments.head_size}, {arguments.threads} threads of")
    print(f"{processor_name()}, {arguments.set}; ms per layer (times faster)\n")
    print(f"| rows x tokens x length | GroupQueryAttention | {' | '.join(TYPES)} |")
    print("|---" * (len(TYPES) + 2) + "|")
    for cell in arguments.cell:
        least = times([*layers(cell, arguments.heads, arguments.head_size)], clock)
        faster = (f"{1e3 * each:.3f} ({least[0] / each:.2f}x)" for each in least[1:])
        name = "x".join(map(str, cell))
        print(f"| {name} | {1e3 * least[0]:.3f} | {' | '.join(faster)} |", flush=True)


def parse_cell(text: str) -> Cell:
    """Parse ``8x1x1024`` as (8, 1, 1024)."""
    rows, tokens, length = text.split("x")
    return int(rows), int(tokens), int(length)


def layers(cell: Cell, heads: int, size: int) -> list[tuple[Callable[[], object], int]]:
    """Return runs of GroupQueryAttention and of Attention by cache type, and their layers."""
    rows, tokens, length = cell
    count = max(1, CACHE_BYTES // (8 * rows * heads * length * size))
    x = np.random.default_rng(0).standard_normal((rows, tokens, 3 * heads * size))
    feeds: dict[str, np.ndarray] = {
        "query": x.astype(np.float32),
        "write_indices": np.full(rows, length - tokens, np.int64),
        "seqlens_k": np.full(rows, length - 1, np.int32),
        "total_sequence_length": np.array(length, np.int32),
    }
    runs = [bound("GroupQueryAttention", TensorProto.FLOAT, cell, heads, size, count, feeds)]
    runs += [bound("Attention", kind, cell, heads, size, count, feeds) for kind in TYPES.values()]
    return [(run, count) for run in runs]


def bound(
    operator: str,
    kind: int,
    cell: Cell,
    heads: int,
    size: int,
    count: int,
    feeds: dict[str, np.ndarray],
) -> Callable[[], object]:
    """Return a run of ``count`` nodes, each appending in place to its own cache."""
    ours = operator == "Attention"
    extra = ["write_indices"] if ours else ["seqlens_k", "total_sequence_length"]
    shape = [cell[0], heads, cell[2], size + (4 if kind == TensorProto.INT8 else 0)]
    nodes, inputs, outputs = [], ["query", *extra], []
    for n in range(count):
        past, present = [f"past_key{n}", f"past_value{n}"], [f"key{n}", f"value{n}"]
        nodes.append(
            helper.make_node(
                operator,
                ["query", "", "", *past, *extra],
                [f"y{n}", *present],
                domain=DOMAIN if ours else "com.microsoft",
                num_heads=heads,
                kv_num_heads=heads,
            )
        )
        outputs += [f"y{n}", *present]
    session = session_of(nodes, inputs, outputs, kind, feeds)
    binding = session.io_binding()
    for name in inputs:
        binding.bind_cpu_input(name, feeds[name])
    width = helper.tensor_dtype_to_np_dtype(kind).itemsize
    buffers = []
    for name in [each for each in outputs if not each.startswith("y")]:
        buffers.append(np.zeros([*shape[:3], shape[3] * width], np.uint8))
        place = ("cpu", 0, kind, shape, buffers[-1].ctypes.data)
        binding.bind_input(f"past_{name}", *place)
        binding.bind_output(name, *place)
    for n in range(count):
        binding.bind_output(f"y{n}", "cpu")

    def run(_kept: list[np.ndarray] = buffers) -> None:  # the binding keeps only addresses
        session.run_with_iobinding(binding)

    return run


def session_of(
    nodes: list[NodeProto],
    inputs: list[str],
    outputs: list[str],
    kind: int,
    feeds: dict[str, np.ndarray],
) -> onnxruntime.InferenceSession:
    """Open a session of the nodes on the shared threads; caches are inputs of type ``kind``."""

    def value(name: str, dtype: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, None)

    given = [value(name, helper.np_dtype_to_tensor_dtype(feeds[name].dtype)) for name in inputs]
    caches = [value(f"past_{name}", kind) for name in outputs if not name.startswith("y")]
    made = [value(name, TensorProto.FLOAT if name[0] == "y" else kind) for name in outputs]
    graph = helper.make_graph(nodes, "attention", given + caches, made)
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 21), ("com.microsoft", 1), (DOMAIN, 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = session_options(None)
    options.register_custom_ops_library(str(require_library("this").path))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def times(runs: list[tuple[Callable[[], object], int]], clock: Callable[[], float]) -> list[float]:
    """Return the minimum seconds per layer of each run, alternating."""
    least = [float("inf")] * len(runs)
    start = perf_counter()
    while perf_counter() - start < LEAST_SECONDS * len(runs):
        for number, (run, count) in enumerate(runs):
            begin = clock()
            run()
            least[number] = min(least[number], (clock() - begin) / count)
    return least


if __name__ == "__main__":
    main()
