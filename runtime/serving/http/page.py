"""The page at ``/``: one file, and a policy that lets a browser run this file's script alone."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A document of HTML and the headers that it is sent with."""

    html: str
    headers: dict[str, str]

    @classmethod
    def load(cls) -> Page:
        """Read the file that lies beside this module; its scripts and styles are let in by hash."""
        html = (files(__package__) / "playground.html").read_text(encoding="utf-8")
        hashes: dict[str, list[str]] = {"script": [], "style": []}
        for kind, text in _INLINE.findall(html):
            hashes[kind].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
        policy = (
            f"default-src 'self'; script-src {' '.join(hashes['script'])}; "
            f"style-src {' '.join(hashes['style'])}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return cls(html, headers)
