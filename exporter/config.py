"""What an export is asked to do: one frozen value with a JSON round trip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..engines.cpu import int8_weight_bits
from ..engines.errors import UsageError
from ..engines.manifest import FloatType, PrecisionSpec, Quantization

LoadFormat = Literal["auto", "safetensors", "bin", "dummy"]

BLOCK_QUANTIZATIONS: tuple[Quantization, ...] = ("int8-block", "int4")
DEFAULT_BLOCK_SIZE = 128
GIB = 1 << 30


class ExportConfig(BaseModel):
    """All that decides what `export` reads, builds, checks and writes.

    Raises UsageError, with every problem at once, for an unknown field or a value that is not
    allowed. ``ExportConfig.from_json(config.to_json()) == config`` holds for every config.

    >>> ExportConfig(model="opt-1.3b", quantize="int8").precision().head_quantize
    'int8'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="opt-125m ... opt-66b, a hub id or a directory")
    output: Path | None = Field(
        default=None, description="None: named after the model, see output_path"
    )
    load_format: LoadFormat = "auto"
    revision: str | None = Field(default=None, description="branch, tag or commit on the hub")
    local_files_only: bool = False
    dtype: FloatType = "float32"
    quantize: Quantization = "none"
    head_quantize: Quantization | None = Field(default=None, description="None: as quantize")
    block_size: int | None = Field(default=None, description="int4 and int8-block only")
    accuracy_level: Literal[0, 4] = Field(default=4, description="of MatMulNBits: 0 exact, 4 int8")
    int8_weight_bits: Literal[7, 8] | None = Field(
        default=None, description="int8 only; None: 8, or 7 where this CPU's products saturate"
    )
    target: str = "onnxruntime"
    max_seq_len: int | None = Field(default=None, ge=1, description="None: the model's positions")
    schedule: str | None = Field(default=None, description="None: the checkpoint's, else full")
    keep_canonical: bool = False
    force: bool = False
    resume: bool = True
    verify: bool = True
    verify_memory: int = Field(default=8 * GIB, ge=0, description="bytes for the whole reference")
    atol: float | None = Field(default=None, gt=0, description="None: verification's default")
    jobs: int = Field(default=1, ge=1, description="engines built at once; memory grows alike")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="of dummy weights and test prompts")

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  (pydantic checks every field)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise UsageError("ExportConfig", *map(_describe, error.errors())) from error
        if problems := tuple(self._problems()):
            raise UsageError("ExportConfig", *problems)

    def _problems(self) -> Iterator[str]:
        """What the fields get wrong together."""
        used = {self.quantize, self.head_quantize or self.quantize}
        if self.block_size is not None:
            if used.isdisjoint(BLOCK_QUANTIZATIONS):
                yield (
                    f"block_size is {self.block_size} but nothing is quantised in blocks; "
                    "leave it out, or set quantize to int4 or int8-block"
                )
            if self.block_size < 16 or self.block_size & (self.block_size - 1):
                yield f"block_size is {self.block_size}; allowed: 16, 32, 64, 128, 256, ..."
        if self.int8_weight_bits is not None and "int8" not in used:
            yield (
                f"int8_weight_bits is {self.int8_weight_bits} but nothing is quantised to int8; "
                "leave it out, or set quantize to int8"
            )

    def precision(self) -> PrecisionSpec:
        """The number formats asked for, with every default resolved for this machine."""
        head = self.quantize if self.head_quantize is None else self.head_quantize
        in_blocks = not {self.quantize, head}.isdisjoint(BLOCK_QUANTIZATIONS)
        is_int8 = "int8" in (self.quantize, head)
        return PrecisionSpec(
            dtype=self.dtype,
            quantize=self.quantize,
            head_quantize=head,
            block_size=(self.block_size or DEFAULT_BLOCK_SIZE) if in_blocks else None,
            accuracy_level=self.accuracy_level if in_blocks else None,
            int8_weight_bits=(self.int8_weight_bits or int8_weight_bits()) if is_int8 else None,
        )

    def to_json(self) -> str:
        """The config as a JSON object, every field included."""
        return self.model_dump_json(indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExportConfig:
        """Read what `to_json` wrote. Raises UsageError for broken JSON and bad values."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UsageError("ExportConfig", f"is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise UsageError(
                "ExportConfig", f"is a JSON {type(document).__name__}; expected an object"
            )
        return cls(**document)


def _describe(item: Any) -> str:  # noqa: ANN401  (pydantic's ErrorDetails)
    field = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{field} is unknown; allowed: {', '.join(ExportConfig.model_fields)}"
    if item["type"] == "missing":
        return f"{field} is missing; give it"
    return f"{field} is {item['input']!r}; {item['msg'][:1].lower()}{item['msg'][1:]}"
