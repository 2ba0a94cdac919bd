"""Load supported versions of TensorRT and route their messages."""

from __future__ import annotations

import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from plan_requests import needs_tensorrt_rtx

from skipdec.engines.errors import EnvironmentMismatchError, MissingExtraError
from skipdec.engines.trt import library as trt_library
from skipdec.engines.trt.library import LOGGER_NAME, load_library, logger


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> ModuleType:
    """Replace the installed TensorRT with a module ``tensorrt`` of ``version``."""
    module = ModuleType("tensorrt")
    module.__version__ = version  # type: ignore[attr-defined]
    module.__spec__ = ModuleSpec("tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    monkeypatch.setattr(trt_library, "require_extra", lambda *_: None)
    return module


@pytest.mark.parametrize("version", ["10.15.1.29", "10.16.1.11", "11.4.0.106"])
def test_supported_versions_are_loaded(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = install(monkeypatch, version)
    library = load_library("tensorrt")
    assert (library.module, library.version) == (module, version)
    assert not library.compute_capabilities


@pytest.mark.parametrize("version", ["8.6.1", "10.9.0.34", "10.14.1.48"])
def test_a_version_without_in_place_caches_is_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, version)
    message = rf"tensorrt is version {version}; needed: 10.15 or later.*pip install --upgrade"
    with pytest.raises(EnvironmentMismatchError, match=message):
        load_library("tensorrt")


def test_a_missing_library_is_refused_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setattr("skipdec.engines.host.installation.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[tensorrt\]"):
        load_library("tensorrt")


def test_bindings_without_their_library_have_an_error_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # importing it raises ImportError
    monkeypatch.setattr(trt_library, "require_extra", lambda *_: None)
    with pytest.raises(EnvironmentMismatchError, match="is installed but can't be loaded"):
        load_library("tensorrt")


@needs_tensorrt_rtx
def test_the_compute_capabilities_are_read_from_the_library() -> None:
    library = load_library("tensorrt-rtx")
    known = library.compute_capabilities
    assert {"7.5", "8.6", "8.9", "12.0"} <= set(known)
    assert list(known) == sorted(known, key=float)
    assert known["8.9"].name == "SM89"


@needs_tensorrt_rtx
def test_messages_go_to_one_python_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    library = load_library("tensorrt-rtx")
    forward = logger(library)
    severity = library.module.ILogger.Severity
    with caplog.at_level(logging.DEBUG, LOGGER_NAME):
        for level in (severity.INTERNAL_ERROR, severity.WARNING, severity.VERBOSE):
            forward.log(level, "50 % done")
    assert [record.levelno for record in caplog.records] == [
        logging.CRITICAL,
        logging.WARNING,
        logging.DEBUG,
    ]
    assert {record.getMessage() for record in caplog.records} == {"50 % done"}
    assert logger(load_library("tensorrt-rtx")) is forward
