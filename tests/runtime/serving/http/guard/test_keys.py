"""API keys are read from files as editors write them; a source without keys is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from skipdec.engines.errors import UsageError
from skipdec.runtime.serving.http.middleware import VARIABLE, ApiKeys


@pytest.fixture(autouse=True)
def _without_key_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_without_file_and_variable_every_request_is_accepted() -> None:
    assert ApiKeys.read(None).accept(b"")


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbffirst\n", b"\xef\xbb\xbf# ours\r\nfirst\r\n", b" first \n\n# last"]
)
def test_keys_are_read_from_files_with_bom_crlf_and_comments(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "keys").write_bytes(content)
    keys = ApiKeys.read(tmp_path / "keys")
    assert keys.accept(b"Bearer first")
    assert not keys.accept(b"Bearer # ours")
    assert not keys.accept(b"")


@pytest.mark.parametrize("text", ["", " \n", "#secret", "# one\n# two\n"])
def test_a_variable_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=r"SKIPDEC_API_KEY \| has no key: .*unset it") as caught:
        ApiKeys.read(None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no key"),
        (b"\xef\xbb\xbf", "has no key"),
        (b"# first\n", "has no key"),
        ("first\n".encode("utf-16"), "is not text in UTF-8"),
        (b"first\0\n", "line 1 has control characters"),
    ],
)
def test_a_file_without_a_valid_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    (tmp_path / "keys").write_bytes(content)
    monkeypatch.setenv(VARIABLE, "another")
    with pytest.raises(UsageError, match=problem):
        ApiKeys.read(tmp_path / "keys")
