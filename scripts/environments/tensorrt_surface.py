"""Write the names that each supported TensorRT has, for a test that checks the code.

    python scripts/environments/tensorrt_surface.py

NVIDIA's Python bindings are on the ordinary package index; the library that they load is not. The
bindings are therefore imported over empty stub libraries, in their own process: every class, enum
and property exists, but nothing works. Needs a C compiler and pip, but no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

SUPPORTED = (
    "tensorrt==10.15.1.29",
    "tensorrt==10.16.1.11",
    "tensorrt==11.4.0.106",
    "tensorrt-rtx==1.7.1.116",
)
OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "tensorrt_surfaces"
# Symbols that the bindings' shared object asks the loader for; {} is the major version.
LIBRARIES = {
    "tensorrt": ("libnvinfer.so.{}", "libnvonnxparser.so.{}", "libnvinfer_plugin.so.{}"),
    "tensorrt-rtx": ("libtensorrt_rtx.so.{}", "libtensorrt_onnxparser_rtx.so.{}"),
}
SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getPluginRegistry",
    "getNvOnnxParserVersion",
    "initLibNvInferPlugins",
)


def main() -> None:
    """Write one JSON file per version."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--describe", metavar="MODULE", help=argparse.SUPPRESS)  # the child's part
    arguments = parser.parse_args()
    if arguments.describe:
        json.dump(describe(importlib.import_module(arguments.describe)), sys.stdout)
        return
    for requirement in SUPPORTED:
        target, version = requirement.split("==")
        path = OUTPUT / f"{target}-{version}.json"
        path.write_text(format_surface(surface(target, version)), encoding="utf-8")
        print(path)


def surface(target: str, version: str) -> dict[str, object]:
    """Download the bindings of ``target`` and describe them in a child process."""
    module = f"{target.replace('-', '_')}_bindings"
    distribution = f"{target.replace('-', '_')}_cu13_bindings"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name]
        run("pip download", *pip, "--only-binary=:all:", f"{distribution}=={version}")
        for wheel in directory.glob("*.whl"):
            ZipFile(wheel).extractall(directory)
        for library in LIBRARIES[target]:
            compile_stub(directory / library.format(version.split(".")[0]))
        environment = {"LD_LIBRARY_PATH": name, "PYTHONPATH": name, "PATH": os.defpath}
        # -S: installed packages must not replace the stubs
        child = [sys.executable, "-S", __file__, "--describe", module]
        text = run(f"import of {distribution} {version}", *child, environment=environment)
    return {"distribution": distribution, "version": version, **json.loads(text)}


def compile_stub(path: Path) -> None:
    """Compile a shared library whose functions do nothing and return null."""
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("error: no C compiler; install one that is called as cc, e.g. gcc")
    source = "\n".join(f"void *{symbol}(void) {{ return 0; }}" for symbol in SYMBOLS)
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    run("cc", *command, text=source)


def run(
    what: str, *command: str, text: str | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a command and return its output; exit with the command's own message if it fails."""
    result = subprocess.run(command, input=text, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"error: {what} failed with exit status {result.returncode}:\n{result.stderr}")
    return result.stdout


def describe(module: ModuleType) -> dict[str, object]:
    """Return the public names of ``module``: its classes with their members, and the rest."""
    names = public_names(module)
    values = {name: getattr(module, name) for name in names}
    others = [name for name, value in values.items() if not isinstance(value, type | ModuleType)]
    return {"classes": dict(class_members(module)), "others": others}


def class_members(scope: object, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each class in ``scope`` with its public names, then nested classes, dotted."""
    for name in public_names(scope):
        value = getattr(scope, name)
        if isinstance(value, type) and value.__module__.startswith("tensorrt"):
            yield prefix + name, public_names(value)
            yield from class_members(value, f"{prefix}{name}.")


def public_names(value: object) -> list[str]:
    """Return sorted names that do not begin with an underscore."""
    return sorted(name for name in dir(value) if not name.startswith("_"))


def format_surface(document: dict[str, object]) -> str:
    """Return JSON with one line per class, so that ``diff`` can compare versions."""
    classes = document["classes"]
    assert isinstance(classes, dict)
    lines = [f"    {json.dumps(name)}: {json.dumps(names)}" for name, names in classes.items()]
    body = ",\n".join(
        f"  {json.dumps(key)}: {json.dumps(document[key])}"
        for key in ("distribution", "version", "others")
    )
    return f'{{\n{body},\n  "classes": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    main()
