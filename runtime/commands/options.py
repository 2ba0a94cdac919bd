"""GenerateOptions: what ``skipdec generate`` was asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...engines.backends.session import default_device, open_backend
from ...engines.bundle import EngineBundle
from ...engines.errors import UsageError
from ...engines.host.console import parse_memory_size
from ...engines.host.processor import available_cores
from ..generator import Generator
from ..tokens.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The command's options, checked: a UsageError names all that don't go together."""

    bundle: Path
    prompts: tuple[str, ...]
    input: str | None  # a file of lines, "-" for stdin
    output: Path | None  # None: stdout
    resume: bool
    force: bool
    stream: bool
    as_json: bool
    quiet: bool
    schedule: str | None  # None: the bundle's own
    device: str | None  # None: what the bundle's target runs on
    threads: int | None  # None: all cores
    max_batch_size: int
    kv_memory: str | None  # as written, e.g. "2GiB"
    params: SamplingParams  # of prompts, and of lines that say nothing else

    def __post_init__(self) -> None:
        problems = []
        if bool(self.prompts) == (self.input is not None):
            problems.append("give either -p or --input")
        if self.output is not None and self.input is None:
            problems.append("--output needs --input")
        if self.output is None and (self.resume or self.force):
            problems.append("--resume and --force need --output")
        if self.resume and self.force:
            problems.append("--resume and --force exclude each other")
        if self.stream and self.input is not None:
            problems.append("--stream needs -p")
        if self.stream and not self.as_json and len(self.prompts) * self.params.n > 1:
            problems.append("--stream shows one completion as text; add --json for more")
        if problems:
            raise UsageError("generate", *problems)

    def open_generator(self) -> Generator:
        """Load the bundle's engines."""
        kv_memory = None
        if self.kv_memory is not None:
            kv_memory = parse_memory_size(self.kv_memory, "--kv-memory")
        return open_for_command(
            self.bundle,
            device=self.device,
            threads=self.threads,
            max_batch_size=self.max_batch_size,
            kv_memory=kv_memory,
        )


def open_for_command(
    path: Path,
    *,
    device: str | None,
    threads: int | None,
    max_batch_size: int,
    kv_memory: int | None = None,
) -> Generator:
    """Open the bundle at ``path``; on a CPU, with one thread pool for the whole process.

    ``threads``: None for all cores. Raises what ``Generator.open`` raises, and UsageError for
    threads where engines run on a GPU.
    """
    bundle = EngineBundle.open(path)
    target = bundle.manifest.target
    where = device or default_device(target)
    if where == "cpu":
        from ...engines.backends.ort import use_shared_thread_pool

        use_shared_thread_pool(threads or available_cores())
    elif threads is not None:
        raise UsageError("--threads", f"is {threads}, but engines run on {where}; leave it out")
    backend = open_backend(target, device=where)
    return Generator(bundle, backend, max_batch_size=max_batch_size, kv_memory=kv_memory)
