"""A server in its own process runs its engines on a device."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Any
from urllib.request import Request, urlopen

import pytest
from command_line import SKIPDEC
from machine_devices import DEVICES, open_on, require_device
from text_bundles import STRUCTURE, export_text_bundle

from skipdec import SamplingParams

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

PROMPTS = ["a", "be", "see", "deed", "edged", "facade"]
TOKENS = 12
_PATIENCE = 120.0  # seconds


@contextmanager
def served(bundle: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``skipdec serve`` and yield its address and process, which is killed at the end."""
    command = [*SKIPDEC, "serve"]
    command += [f"tiny={bundle}", "--port=0", "--log-format=json", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        limit = Timer(_PATIENCE, process.kill)  # ends reads from a hung server
        limit.start()
        try:
            yield _address(process), process
        finally:
            limit.cancel()
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    """Return the address of a server once it is ready."""
    assert process.stderr is not None
    lines, address = [], ""
    for line in process.stderr:
        lines.append(line)
        document = json.loads(line)
        address = str(document.get("address", address))
        if str(document["message"]).startswith("ready"):
            return address
    raise AssertionError(f"the server ended: {''.join(lines)[-2000:]}")


def complete(address: str, prompt: str) -> str:
    """Return the greedy text of ``prompt``."""
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    body = json.dumps(fields | {"ignore_eos": True}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/v1/completions", body, headers), timeout=60) as response:
        document: dict[str, Any] = json.load(response)
    return str(document["choices"][0]["text"])


@DEVICES
def test_a_server_writes_the_generators_texts_and_ends_at_sigterm(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    device: str,
) -> None:
    require_device(device)
    options = {"dtype": "float16", "kernels": "onnxruntime"}
    bundle = export_text_bundle(checkpoint(STRUCTURE), tmp_path, **options)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with open_on(bundle, device, max_batch_size=4) as generator:
        expected = [generator.generate([one], params)[0].outputs[0].text for one in PROMPTS]
    with served(bundle, f"--device={device}", "--max-batch-size=4") as (address, process):
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            found = list(clients.map(lambda prompt: complete(address, prompt), PROMPTS))
        start = perf_counter()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        record_property("ended after s", f"{perf_counter() - start:.2f}")
    equal = sum(one == other for one, other in zip(found, expected, strict=True))
    record_property("texts as generate", f"{equal} of {len(PROMPTS)}")
    assert equal >= (4 if device == "cuda" else len(PROMPTS))  # others may diverge at ties
