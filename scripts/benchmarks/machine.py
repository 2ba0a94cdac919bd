"""The processor of measurements: its name and relevant instruction sets."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skipdec.engines.host.processor import processor_flags, processor_name

# Flags of /proc/cpuinfo, on x86-64 and aarch64, that our kernels or a peer's use.
_INSTRUCTION_SETS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
)


@dataclass(frozen=True)
class Machine:
    """One column of a page of figures."""

    processor: str  # AMD EPYC, family 25, model 17
    instruction_sets: tuple[str, ...]

    @classmethod
    def here(cls, cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
        """Describe the machine of this process."""
        fields = dict(re.findall(r"^(cpu family|model)\s*:\s*(\d+)$", cpuinfo.read_text(), re.M))
        named = [f"{name.removeprefix('cpu ')} {number}" for name, number in fields.items()]
        flags = processor_flags(cpuinfo)
        found = tuple(name for name in _INSTRUCTION_SETS if name in flags)
        return cls(", ".join([processor_name(cpuinfo) or "unnamed processor", *named]), found)

    @property
    def key(self) -> str:
        """File name ``amd-epyc-family-25-model-17-avx512_vnni``, with the best integer set."""
        integers = [name for name in self.instruction_sets if re.search("vnni|int8|dp", name)]
        text = " ".join([self.processor, *integers[-1:]]).lower()
        return re.sub(r"[^a-z0-9_]+", "-", text).strip("-")

    def document(self) -> dict[str, Any]:
        """Return the machine as JSON."""
        return {**asdict(self), "instruction_sets": list(self.instruction_sets)}
