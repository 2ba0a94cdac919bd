"""Exports bundles to measure, with random weights of real sizes, and opens them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu.paired import Variant
from benchmarks.process import run_command, skipdec_command
from skipdec import Generator

# Export options by the end of a bundle's name. int8 and int4 have float16 caches.
_OWN = ("--kernels", "skipdec")
_ONNX_RUNTIME = ("--kernels", "onnxruntime")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "float32": _OWN,
    "float16": (*_OWN, "--dtype=float16"),
    "bfloat16": (*_OWN, "--dtype", "bfloat16"),
    "int8": (*_OWN, "--quantize", "int8"),
    "int8-kv-float32": (*_OWN, "--quantize", "int8", "--kv-dtype", "float32"),
    "int8-kv-int8": (*_OWN, "--quantize", "int8", "--kv-dtype", "int8"),
    "int8-onnxruntime": (*_ONNX_RUNTIME, "--quantize", "int8"),
    "int4": (*_OWN, "--quantize", "int4"),
    "int4-onnxruntime": (*_ONNX_RUNTIME, "--quantize", "int4"),
}


@dataclass
class Bundles:
    """Exports missing bundles to ``work``."""

    work: Path
    threads: int
    _open: ExitStack = field(default_factory=ExitStack)

    def path(self, model: str, kind: str) -> Path:
        """Return ``work/MODEL-KIND``, exported if missing; ``kind`` is one of ``_OPTIONS``."""
        bundle = self.work / f"{model}-{kind}"
        if not bundle.exists():
            run_command(export_command(model, _OPTIONS[kind], bundle))
        return bundle

    def variant(self, model: str, kind: str, *, rows: int = 1, context: int = 160) -> Variant:
        """Open a generator until ``close``, with weights copied to process memory.

        Mapped weights would have different page placements for each file.
        """
        own = not kind.endswith("onnxruntime")  # ONNX Runtime's operators copy weights anyway
        generator = Generator.open(
            self.path(model, kind),
            max_batch_size=rows,
            verify="graphs",
            weights="copied" if own else "mapped",
        )
        return Variant(self._open.enter_context(generator), rows, context)

    def close(self) -> None:
        """Close the generators of all variants."""
        self._open.close()


def export_command(model: str, options: Sequence[str], output: Path) -> list[str]:
    """Return the command that exports random weights, unverified."""
    fixed = ("--load-format=dummy", "--no-verify", "--force", "--quiet")
    return skipdec_command("export", model, *options, *fixed, "-o", str(output))
