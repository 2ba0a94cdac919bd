"""Run the steps of the Dockerfile without Docker, and request a text from the server.

    python scripts/environments/rehearse_container.py

Each stage runs in its own mount namespaces, with the context that .dockerignore leaves and the
paths that the Dockerfile names. This machine's Python replaces the base image, and its compiler
replaces apt-get's. As in the manifests of examples/deployment, the server runs as a user other than
root, without capabilities, with a read-only root and bundle. Needs root and util-linux.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.process import skipdec_command

ROOT = Path(__file__).resolve().parents[2]
PATHS = ("/opt", "/srv")  # all paths that the Dockerfile may write to
ASK = """
import json, sys
from urllib.request import Request, urlopen
document = {"prompt": "name[The Mill], food[French]", "max_tokens": 8}
request = Request("http://127.0.0.1:8000/v1/completions", json.dumps(document).encode())
print(json.load(urlopen(request, timeout=60))["usage"])
"""


@dataclass
class Stage:
    """One FROM and its instructions."""

    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, keyword: str) -> str:
        """Return the argument of the last instruction of this kind."""
        return [argument for found, argument in self.instructions if found == keyword][-1]

    def command(self) -> list[str]:
        """Command of its containers."""
        words: list[str] = json.loads(self.last("ENTRYPOINT")) + json.loads(self.last("CMD"))
        return words


def parse(text: str) -> list[Stage]:
    """Parse the stages of a Dockerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stages: list[Stage] = []
    for line in filter(str.strip, joined.splitlines()):
        keyword, argument = line.split(maxsplit=1)
        if keyword == "FROM":
            stages.append(Stage(argument.partition(" AS ")[2]))
        else:
            stages[-1].instructions.append((keyword, argument))
    return stages


def is_in_context(path: str, ignore: str) -> bool:
    """Return True unless .dockerignore excludes the relative ``path``; its last match decides."""
    patterns = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    parts = Path(path).parts
    kept = True
    for pattern in patterns:
        name = pattern.removeprefix("!")
        above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        anywhere = name.removeprefix("**/")
        if any(fnmatch(one, name) and one.count("/") == name.count("/") for one in above) or (
            anywhere != name and any(fnmatch(part, anywhere) for part in parts)
        ):
            kept = pattern.startswith("!")
    return kept


def copy_context(target: Path) -> None:
    """Copy the tracked and untracked files of this checkout, without those in .dockerignore."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    ignore = (ROOT / ".dockerignore").read_text()
    for name in filter(None, listed.split("\0")):
        if is_in_context(name, ignore) and os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name, follow_symlinks=False)


def script(stage: Stage, context: Path) -> list[str]:
    """Return shell lines that build ``stage``."""
    lines = ["set -e"]
    for keyword, argument in stage.instructions:
        match keyword, shlex.split(argument):
            case "WORKDIR", [directory]:
                lines += [f"mkdir -p {directory}", f"cd {directory}"]
            case "COPY", [".", "."]:
                lines.append(f"cp -r {context}/. .")
            case "COPY", [source, path, target] if source.startswith("--from=") and path == target:
                lines.append(f"test -e {target}  # both stages share {path} here")
            case "ENV", pairs:
                lines += [f'export {pair.partition("=")[0]}="{pair.partition("=")[2]}"'
                          for pair in pairs]  # fmt: skip
            case "RUN", ["apt-get", *_]:
                print(f"not run here: {argument}")
            case "RUN", _:
                lines.append(f"sh -ec {shlex.quote(argument)}")
            case "USER" | "VOLUME" | "EXPOSE" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD", _:
                pass  # for the container, not for the build
            case _:
                raise SystemExit(f"error: no rehearsal of: {keyword} {argument}")
    return lines


def mounted(work: Path) -> list[str]:
    """Return shell lines that mount ``work``'s folders over PATHS, and Python on PATH."""
    base = Path(sys.base_prefix)
    return [
        "set -e",
        *(f"mount --bind {work}{path} {path}" for path in PATHS),
        f"mkdir -p /opt/python && mount --bind {base} /opt/python",
        "export PATH=/opt/python/bin:$PATH LD_LIBRARY_PATH=/opt/python/lib",
    ]


def served(stage: Stage, bundle: Path) -> list[str]:
    """Return shell lines that run ``stage`` with the read-only ``bundle``, and stop it."""
    uid, gid = stage.last("USER").split(":")
    health = json.loads(stage.last("HEALTHCHECK").partition("CMD ")[2])
    server = shlex.join(stage.command())
    return [
        "mkdir -p /srv/bundle",
        f"mount --bind {bundle} /srv/bundle",
        "mount -t tmpfs tmpfs /tmp",
        *(
            f"mount -o remount,bind,ro {directory}"
            for directory in ("/srv/bundle", "/opt/python", "/opt", "/srv", "/")
        ),
        "ip link set lo up",
        "cd /",
        f"setpriv --reuid={uid} --regid={gid} --clear-groups --no-new-privs --inh-caps=-all"
        f" --bounding-set=-all env HOME=/nonexistent {server} & server=$!",
        'trap "kill -9 $server 2>/dev/null || true" EXIT',
        f"for i in $(seq 60); do {shlex.join(health)} 2>/dev/null && break; sleep 1; done",
        shlex.join(health),
        shlex.join(["python", "-c", ASK]),
        "kill -TERM $server",
        "wait $server",  # its exit code, if not 0, ends this script
    ]


def example_bundle(output: Path) -> Path:
    """Export this repository's small model in int8, which runs on the kernels."""
    command = skipdec_command("export", str(ROOT / "examples" / "restaurants"), "--no-verify")
    subprocess.run([*command, "--quantize", "int8", "--quiet", "--output", str(output)], check=True)
    return output


def run(namespaces: list[str], lines: list[str]) -> None:
    """Run shell lines in new namespaces; exits with the code of the first that fails."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    command = ["unshare", *namespaces, "bash", "-c", "\n".join(lines)]
    if code := subprocess.run(command, env=environment).returncode:
        raise SystemExit(code)


def main() -> None:
    """Build, serve, request a text, and stop."""
    build, final = parse((ROOT / "Dockerfile").read_text())
    with tempfile.TemporaryDirectory(prefix="container-") as temporary:
        work = Path(temporary)
        for path in PATHS:
            (work / path.lstrip("/")).mkdir()
        copy_context(work / "context")
        run(["--mount"], [*mounted(work), *script(build, work / "context")])
        bundle = example_bundle(work / "restaurants")
        lines = [*script(final, work / "context"), *served(final, bundle)]
        run(["--mount", "--net"], [*mounted(work), *lines])
    print("the container's steps ran, and its server answered and ended well")


if __name__ == "__main__":
    main()
