"""Print how large the code is: lines by kind, and the files that commands and a call use.

    python scripts/house.py            # the lines
    python scripts/house.py --walks    # also the files; exports a tiny model and runs it

A file counts for a command if one of its functions is called outside imports.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("src", "engines", "runtime", "exporter", "calib")
CPP = (".cpp", ".h", ".hpp")

# Python runs sitecustomize in every process, children included.
TRACER = """
import os, sys, threading
root, log = os.environ["HOUSE_ROOT"], os.environ["HOUSE_LOG"]
seen, handle = set(), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def called(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in seen:
        return
    name = os.path.realpath(code.co_filename)
    if not name.startswith(root) or "/site-packages/" in name or code.co_name.startswith("<"):
        seen.add(code)
        return
    outer = frame.f_back
    while outer is not None:
        if outer.f_code.co_filename.startswith("<frozen importlib"):
            return
        outer = outer.f_back
    seen.add(code)
    os.write(handle, (name + "\\n").encode())
sys.setprofile(called)
threading.setprofile(called)
"""


def tracked(*folders: str) -> list[Path]:
    """Return the tracked files below ``folders``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def num_lines(paths: list[Path]) -> int:
    """Return the number of lines of ``paths``, blank ones included."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def code_lines(path: Path) -> int:
    """Return the number of lines of a Python file without blanks, comments and docstrings."""
    text = path.read_text("utf-8")
    skipped = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENCODING, tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is None:
                continue
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def print_lines() -> None:
    """Print the lines of product, C++, tests and scripts."""
    product = [path for path in tracked(*PRODUCT) if path.suffix == ".py"]
    native = [path for path in tracked("runtime/native", "engines") if path.suffix in CPP]
    tests = [path for path in tracked("tests") if path.suffix == ".py"]
    scripts = [path for path in tracked("scripts", ".ci") if path.suffix in {".py", ".sh", ".cpp"}]
    code = sum(map(code_lines, product))
    print(f"product Python {num_lines(product):,} lines, {code:,} of code, {len(product)} files")
    print(f"C++ {num_lines(native):,} lines, {len(native)} files")
    print(f"tests {num_lines(tests):,} lines, {len(tests)} files")
    print(f"scripts {num_lines(scripts):,} lines, {len(scripts)} files")
    docs = [path for path in tracked("docs") if path.suffix == ".md"]
    print(f"docs {num_lines(docs):,} lines")


def traced(log: Path, *command: object) -> set[Path]:
    """Run a command and return the files of the product whose functions it called."""
    hook = log.with_suffix(".site")
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(TRACER)
    before = os.environ.get("PYTHONPATH")
    search = os.pathsep.join([str(hook), *([before] if before else [])])
    environment = {**os.environ, "PYTHONPATH": search}
    environment |= {"HOUSE_ROOT": str(ROOT), "HOUSE_LOG": str(log)}
    arguments = [sys.executable, *map(str, command)]
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr)
    return {Path(line) for line in log.read_text().splitlines()}


CALL = """
import os, sys
from skipdec.runtime.generator import Generator
profile = sys.getprofile()
sys.setprofile(None)
with Generator.open(sys.argv[1]) as generator:
    os.truncate(os.environ["HOUSE_LOG"], 0)
    sys.setprofile(profile)
    generator.generate("a")
    sys.setprofile(None)
    size = os.path.getsize(os.environ["HOUSE_LOG"])
os.truncate(os.environ["HOUSE_LOG"], size)
"""

SERVE = """
import re, signal, subprocess, sys, urllib.request
command = [sys.executable, "-m", "skipdec", "serve", sys.argv[1], "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
address = None
for line in server.stderr:
    address = re.search(r"listening on (http://[\\d.:]+)", line) or address
    if "ready" in line:
        break
body = b'{"prompt": "a", "max_tokens": 4}'
request = urllib.request.Request(address[1] + "/v1/completions", body)
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request).read())
server.send_signal(signal.SIGTERM)
server.communicate()
"""


def print_walks() -> None:
    """Print how many files the commands and one `Generator.generate` use."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        bundle = Path(directory) / "bundle"
        module = ("-m", "skipdec")
        model = ("--load-format", "dummy", "--output", bundle, "--no-verify")
        exported = traced(log, *module, "export", "opt-125m", *model)
        print(f"export passes through {len(exported)} files")
        generated = traced(log.with_name("generate"), *module, "generate", bundle, "--prompt", "a")
        print(f"generate passes through {len(generated)} files")
        served = traced(log.with_name("serve"), "-c", SERVE, bundle)
        print(f"serve passes through {len(served)} files")
        called = traced(log.with_name("call"), "-c", CALL, bundle)
        print(f"Generator.generate passes through {len(called)} files")


def main(*, walks: bool = False) -> None:
    """Print the lines and, with ``walks``, the files of commands."""
    print_lines()
    if walks:
        print_walks()


if __name__ == "__main__":
    typer.run(main)
