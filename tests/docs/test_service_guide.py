"""The guide from a checkpoint to a service runs as written, except for Docker commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx2
import pytest
from command_line import SKIPDEC
from page_blocks import ROOT, blocks, run_commands, run_python, skipdec_commands

GUIDE = "docs/guides/from-checkpoint-to-service.md"
ADDRESS = "http://127.0.0.1:8000"


@contextmanager
def served(command: tuple[str, ...], directory: Path) -> Iterator[str]:
    """Return the address of a ready server on a free port."""
    process = subprocess.Popen(
        [*SKIPDEC, *command, "--port", "0"],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines = iter(process.stderr)
        address = ""
        while "ready: restaurants" not in (line := next(lines)):
            address = address or "".join(re.findall(r"http://[\d.]+:\d+", line)[:1])
        Thread(target=lambda: list(lines), daemon=True).start()  # so that the pipe never fills
        yield address.replace("0.0.0.0", "127.0.0.1")
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.pages
def test_the_guides_commands_run_and_print_what_the_guide_shows(tmp_path: Path) -> None:
    for name in ("examples", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    shells = blocks(GUIDE, "sh", "Choose the schedules to offer")
    commands = [command for shell in shells for command in skipdec_commands(shell)]
    assert "1.10" in run_commands(commands, tmp_path)[commands[-1]]

    (serve,) = skipdec_commands(blocks(GUIDE, "sh", "Serve")[0])
    with served(serve, tmp_path) as address:
        (program,) = blocks(GUIDE, "python")
        assert run_python(program.replace(ADDRESS, address), tmp_path) == blocks(GUIDE, "text")[0]
        (curl,) = blocks(GUIDE, "console", "Serve")
        words = shlex.split(curl.removeprefix("$ ").replace(ADDRESS, address))
        document = words[words.index("-d") + 1]
        answer = httpx2.post(words[1], content=document, headers=dict([words[3].split(": ")]))
        assert answer.json()["choices"][0]["layers_per_token"][:2] == [12, 4]
        (load,) = blocks(GUIDE, "sh", "Measure the load it can take")
        shell = load.replace(ADDRESS, address).replace("python ", f"{shlex.quote(sys.executable)} ")
        done = subprocess.run(["bash", "-ec", shell], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("errors: none") == 2

    keys, *_ = blocks(GUIDE, "sh", "Require API keys")[0].splitlines()
    subprocess.run(["bash", "-ec", keys], cwd=tmp_path, check=True)
    (guarded,) = skipdec_commands(blocks(GUIDE, "sh", "Require API keys")[0])
    with served(guarded, tmp_path) as address:
        assert httpx2.get(f"{address}/v1/models").status_code == 401
        key = {"Authorization": f"Bearer {(tmp_path / 'keys.txt').read_text().strip()}"}
        assert httpx2.get(f"{address}/v1/models", headers=key).status_code == 200
