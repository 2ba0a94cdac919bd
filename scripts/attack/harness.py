"""Tiny bundles to attack, forked children that attack them within limits, and timed event loops.

Forking a warm parent takes milliseconds; a new Python that imports skipdec takes a second. The
parent must not have started threads, so it may import engines but not load any.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skipdec.engines.bundle.files import file_record
from skipdec.engines.documents import sealed_text
from skipdec.engines.errors import SkipDecError
from skipdec.engines.host.signals import signal_name

_MOST_BYTES = 65536  # maximum of an outcome's text

CONFIG = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "vocab_size": 272,
    "max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, object]] = {
    "opt": CONFIG,
    "llama": {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 272,
    },
}


def tiny_bundle(
    directory: Path,
    *,
    seed: int = 0,
    quantize: str = "none",
    positions: int = 64,
    family: str = "opt",
    vocab_size: int = 272,
) -> Path:
    """Export a bundle below the new ``directory``, in its own process; takes some seconds."""
    model = directory / "model"
    model.mkdir(parents=True)
    config = FAMILIES[family] | {"max_position_embeddings": positions, "vocab_size": vocab_size}
    (model / "config.json").write_text(json.dumps(config))
    bundle = directory / "bundle"
    command = [sys.executable, "-m", "skipdec", "export", str(model)]
    command += ["--load-format", "dummy", "--no-verify", "--quiet"]
    (directory / "export.yaml").write_text(f"seed: {seed}\nquantize: {quantize}\n")
    command += ["--config", str(directory / "export.yaml")]
    subprocess.run([*command, "--output", str(bundle)], check=True, stdout=subprocess.DEVNULL)
    return bundle


def put_chat(bundle: Path, template: str, special_tokens: Sequence[str] = ()) -> None:
    """Give a bundle a chat template, and its byte-level tokenizer ``special_tokens``.

    An export would refuse a template that runs away.
    """
    manifest = json.loads((bundle / "manifest.json").read_text())
    tokenizer = json.loads((bundle / manifest["tokenizer"]).read_text())
    first = len(tokenizer["model"]["vocab"])
    for number, text in enumerate(special_tokens, first):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": number, "content": text, "special": True} | flags)
    contents = {manifest["tokenizer"]: json.dumps(tokenizer), "chat_template.jinja": template}
    manifest["chat_template"] = {"path": "chat_template.jinja", "special_tokens": {}}
    files = {record["path"]: record for record in manifest["files"]}
    for name, content in contents.items():
        (bundle / name).write_text(content)
        files[name] = file_record(bundle, name).model_dump()
    manifest["files"] = [files[name] for name in sorted(files)]
    (bundle / "manifest.json").write_text(sealed_text(manifest))


@dataclass(frozen=True)
class Outcome:
    """Result of a child.

    ``kind``: "value" and "error" (one of ours) are sound; "traceback" is any other exception,
    "hang" the time limit, "crash" a signal. ``text``: the value, error or traceback.
    """

    kind: Literal["value", "error", "traceback", "hang", "crash"]
    text: str

    @property
    def is_sound(self) -> bool:
        """True for a value or a named error."""
        return self.kind in ("value", "error")


def run_forked(work: Callable[[], str], *, seconds: float, memory: int) -> Outcome:
    """Return the outcome of ``work()`` in a child that may use ``memory`` more bytes than now."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _report(work, writer, memory)
    os.close(writer)
    try:
        content, in_time = _read_all(reader, seconds)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)  # harmless for a zombie
        _, status = os.waitpid(child, 0)
    if not in_time:
        return Outcome("hang", f"still running after {seconds:g} s")
    kind, _, text = content.decode(errors="replace").partition("\n")
    if kind in ("value", "error", "traceback"):
        return Outcome(kind, text)  # type: ignore[arg-type]  # written by _report
    ended_by = signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else str(status)
    return Outcome("crash", f"{ended_by}\n{content.decode(errors='replace')}")


def _report(work: Callable[[], str], writer: int, memory: int) -> None:
    """Write the outcome to ``writer`` and end this process."""
    faulthandler.enable(writer)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _address_space() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    try:
        text = f"value\n{work()}"
    except SkipDecError as error:
        text = f"error\n{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  (any foreign error is a finding)
        text = f"traceback\n{traceback.format_exc()}"
    os.write(writer, text.encode(errors="replace")[:_MOST_BYTES])
    os._exit(0)


def _read_all(reader: int, seconds: float) -> tuple[bytes, bool]:
    """Return all output until EOF; False if that takes longer than ``seconds``."""
    deadline = os.times().elapsed + seconds
    content = b""
    while (left := deadline - os.times().elapsed) > 0:
        ready, _, _ = select.select([reader], [], [], left)
        if ready:
            part = os.read(reader, _MOST_BYTES)
            if not part:
                return content, True
            content += part
    return content, False


def _address_space() -> int:
    """Return the bytes of virtual memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


class LongestCallback:
    """The largest processor time of one callback, in seconds, since the last ``take``.

    It is the time of the loop's own thread, which other programs on the machine hardly affect.
    """

    def __init__(self) -> None:
        self._seconds = 0.0

    def take(self) -> float:
        """Return the time and start anew."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def add(self, seconds: float) -> None:
        """Count one more callback."""
        self._seconds = max(self._seconds, seconds)


@contextmanager
def timed_callbacks() -> Iterator[LongestCallback]:
    """Time every callback within the block."""
    longest = LongestCallback()
    original = asyncio.Handle._run

    def run(handle: asyncio.Handle) -> None:
        start = time.thread_time()
        original(handle)
        longest.add(time.thread_time() - start)

    asyncio.Handle._run = run  # type: ignore[method-assign, assignment]
    try:
        yield longest
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
