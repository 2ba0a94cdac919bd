"""Test the version of the running skipdec and the pip command that installs an extra."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest

import skipdec
from skipdec.engines.host import installation
from skipdec.engines.host.installation import install_command, own_version

ROOT = Path(skipdec.__file__).parent
HERE = Path(__file__)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": HERE.as_uri(), "archive_info": {}}, f"pip install '{HERE}[plot]'"),
        ({"url": HERE.parent.as_uri(), "dir_info": {}}, f"pip install '{HERE.parent}[plot]'"),
        (
            {"url": HERE.parent.as_uri(), "dir_info": {"editable": True}},
            f"pip install -e '{HERE.parent}[plot]'",
        ),
        ({"url": "file:///gone/skipdec.whl", "archive_info": {}}, "pip install '.[plot]'"),
        (
            {"url": "https://example.org/skipdec", "vcs_info": {"vcs": "git"}},
            "pip install 'skipdec[plot] @ git+https://example.org/skipdec'",
        ),
        (None, "pip install '.[plot]'"),
    ],
)
def test_the_command_installs_an_extra_from_skipdecs_own_source(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(installation, "distribution", lambda _: Mock(read_text=lambda _: text))
    assert install_command("plot") == command


def test_an_uninstalled_checkout_has_a_version_and_a_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(installation, "distribution", Mock(side_effect=PackageNotFoundError))
    monkeypatch.setattr(installation, "_ROOT", HERE.parents[3])
    project = tomllib.loads((HERE.parents[3] / "pyproject.toml").read_text())["project"]
    assert own_version() == project["version"]
    assert install_command("plot") == f"pip install -e '{HERE.parents[3]}[plot]'"


def test_the_package_knows_its_version() -> None:
    assert skipdec.__version__ == own_version()
