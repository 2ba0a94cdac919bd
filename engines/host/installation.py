"""Which skipdec this is, and how an extra is installed beside it: it is on no package index."""

from __future__ import annotations

import json
import shlex
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_ROOT = Path(__file__).resolve().parents[2]  # the package; in a checkout, the repository


def own_version() -> str:
    """The version that pyproject.toml has; of a checkout that is not installed, too."""
    try:
        return distribution("skipdec").version
    except PackageNotFoundError:
        document = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        return str(document["project"]["version"])


def install_command(extra: str, *options: str) -> str:
    """The pip command that adds ``extra`` to this installation, from where it came.

    >>> install_command("plot")
    "pip install -e '/home/me/skipdec[plot]'"
    """
    return shlex.join(["pip", "install", *options, *_requirement(extra)])


def _requirement(extra: str) -> list[str]:
    try:
        origin = _origin(distribution("skipdec"))
    except PackageNotFoundError:
        origin = {"url": _ROOT.as_uri(), "dir_info": {"editable": True}}
    address = str(origin.get("url", ""))
    parts = urlsplit(address)
    if not address:
        return [f".[{extra}]"]
    if parts.scheme != "file" or "vcs_info" in origin:
        kind = origin.get("vcs_info", {}).get("vcs")
        return [f"skipdec[{extra}] @ {f'{kind}+' if kind else ''}{address}"]
    path = unquote(parts.path)
    editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
    return [*editable, f"{path}[{extra}]"] if Path(path).exists() else [f".[{extra}]"]


def _origin(installed: Distribution) -> dict[str, Any]:
    """What pip noted of where it took a distribution from; nothing, if from an index."""
    text = installed.read_text("direct_url.json")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found
