"""One tiny bundle for all tests of the server, one server of it for each file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http_servers import Running, export_tiny, serving
from text_bundles import STRUCTURE

from skipdec.runtime.serving.http.server import ServedBundle


@pytest.fixture(scope="session")
def bundle(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(checkpoint(STRUCTURE), tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(bundle: Path) -> Iterator[Running]:
    with serving(ServedBundle("tiny", bundle)) as running:
        yield running
