"""How commands open a bundle: ``--device`` and ``--threads``."""

from __future__ import annotations

from pathlib import Path

from ..engines.backends.session import default_device, open_backend
from ..engines.bundle import EngineBundle
from ..engines.errors import UsageError
from ..engines.host.processor import available_cores
from .generator import Generator


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
        from ..engines.backends.ort import use_shared_thread_pool

        use_shared_thread_pool(threads or available_cores())
    elif threads is not None:
        raise UsageError("--threads", f"is {threads}, but engines run on {where}; leave it out")
    backend = open_backend(target, device=where)
    return Generator(bundle, backend, max_batch_size=max_batch_size, kv_memory=kv_memory)
