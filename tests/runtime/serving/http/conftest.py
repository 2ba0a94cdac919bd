"""Fixtures share one tiny bundle, one server of it per file, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from http_servers import Running, serving

from skipdec.runtime.serving.http.server import ServedBundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def bundle(int8_bundle: Path) -> Path:
    return int8_bundle


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Running]:
    with serving(ServedBundle("tiny", bundle)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install '.[clients]'"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.getuid() else ["--no-sandbox"]  # not available to root
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield running
        running.close()
