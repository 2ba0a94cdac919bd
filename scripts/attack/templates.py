"""Render runaway chat templates, and serve bundles with such templates beside a sound one.

    python scripts/attack/templates.py --count 100

Each of ``--count`` random templates runs forever, takes gigabytes, or leaves the sandbox, perhaps
within loops, macros, filters and constants. It must end in a named error or a text within the
limits of its process, and the next chat of the same template must be answered. Then a server gets
chats for two bundles with such templates. Each chat must end in 400; /health/live and another
bundle's chats must be answered all the while; and SIGTERM must soon end the server with 0 and no
process left.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import put_chat, tiny_bundle
from processes import child_processes, is_running
from server import Server, repeated, started

from skipdec.engines.errors import BundleError, UsageError
from skipdec.runtime.tokens.template_process import MAX_SECONDS, TemplateProcesses

_MAX_RENDERING = MAX_SECONDS + 5.0  # maximum seconds of a chat: the limit, and a new process
_MAX_GAP = 2.0  # maximum seconds between two answers of /health/live on a busy machine
_MAX_ENDING = 20.0  # maximum seconds from SIGTERM to the exit of the server on a busy machine
_CLIENTS = 6
_NUMBERS = ("1", "2", "7", "40", "99999", "1000000", "-1000000000", "3000000000", "10 ** 12")
_VALUES = (
    *("n", "x", "messages", "messages[0].content", "ns.a", "range(99999)", "{}", "[n, x]", "'x'"),
    *("lipsum()", "cycler(1, 2)", "namespace(a=1)", "messages[0].content.encode()", "none", "1.5"),
)
_EXPRESSIONS = (
    *("{v} | round({n})", "{v} * {n}", "{v} ** {n}", "{v} // {n}", "{v} % {n}", "{v} == {w}"),
    *("{v} in {w}", "{v} ~ {w}", "{v} | tojson(indent={n})", "{v} | tojson(separators=[{w}, {v}])"),
    *("{v} | map(attribute='0.' * {n}) | list", "{v} | sort", "{v} | list | join({w})", "{v}.a.b"),
    *("{v} | replace('', {w} * {n})", "{v}.replace({w}, {v} * {n})", "{v}.rfind({w} * {n})"),
    *("{v} | indent({n})", "{v} | center({n})", "{v} | wordwrap({n})", "{v} | batch({n}) | list"),
    *("{v} | pprint", "{v} | urlize", "{v} | string * {n}", "{v}.to_bytes({n}, 'big')"),
    *("'%(a){n}d' % {{'a': n}}", "'%*d' % ({n}, 1)", "'{{:{{}}}}'.format(1, {n})", "{v} | unique"),
    *("strftime_now('%Y' * {n})", "{v} | format({w})", "{v} | attr('__class__')", "{v}.__class__"),
    *("dict.__globals__", "raise_exception({v})", "range({n}) | list", "[{v}] * {n}", "f({n})"),
    *(
        "{v}.ljust({n})",
        "{v}.zfill({n})",
        "{v}.join({w})",
        "{v} | sum(start={w})",
        "{v} | groupby(0)",
    ),
    *(
        "{v}.append({w})",
        "{v}.expandtabs({n})",
        "{v}.translate({w})",
        "lipsum({n})",
        "{v} | random",
    ),
)
_FRAMES = (
    "{{{{ {e} }}}}",
    "{{% for i in range(99999) %}}{{% set ns.a = [ns.a, ns.a] %}}{{{{ {e} }}}}{{% endfor %}}",
    "{{% for i in range(40) %}}{{% set ns.a = [ns.a, ns.a] %}}{{% endfor %}}{{{{ {e} }}}}",
    "{{% for i in range(40) %}}{{% set ns.a = ns.a ~ ns.a %}}{{% endfor %}}{{{{ {e} }}}}",
    "{{% macro f(n) %}}{{{{ f(n) if n else {e} }}}}{{% endmacro %}}{{{{ f({n}) }}}}",
    "{{% set y = {e} %}}{{{{ y }}}}{{% if y %}}{{{{ y }}}}{{% endif %}}",
    "{{% for i in range({n}) %}}{{{{ {e} }}}}{{% if i %}}{{% break %}}{{% endif %}}{{% endfor %}}",
    "{{% generation %}}{{{{ {e} }}}}{{% endgeneration %}}",
)
_BEGIN = "{% set ns = namespace(a='x') %}{% set n = messages | length %}{% set x = 'x' * 9999 %}"
_FOLDED = "{{ 5 | round(-1000000000) }}"
_SERVED = (
    "{% set word = messages[0].content %}{% set one = messages | length %}"
    "{% if word == 'round' %}{{ one | round(-1000000000) }}"
    "{% elif word == 'bytes' %}{{ one.to_bytes(3000000000, 'big') }}"
    "{% elif word == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}{% elif word == 'path' %}{{ messages | map(attribute='0.' * 3000000) | list }}"
    "{% elif word == 'power' %}{{ (one + 6) ** 99999999 // 3 }}"
    "{% elif word == 'sum' %}{{ range(99999) | map('string') | map('list') | sum(start=[]) }}"
    "{% endif %}{{ word }}"
)
_WORDS = ("round", "bytes", "loop", "path", "power", "sum")


def templates(source: random.Random) -> Iterator[str]:
    """Yield random templates, which the role "other" of the first message activates."""
    while True:
        parts = {
            "v": source.choice(_VALUES),
            "w": source.choice(_VALUES),
            "n": source.choice(_NUMBERS),
        }
        expression = source.choice(_EXPRESSIONS).format(**parts)
        body = source.choice(_FRAMES).format(e=expression, n=parts["n"])
        yield ("{% if messages[0].role == 'other' %}fine{% else %}" + _BEGIN + body + "{% endif %}")


def attacked(template: str) -> tuple[str, list[str]]:
    """Return how the chat of a template ended, and problems with that."""
    problems = []
    processes = TemplateProcesses(template, "template")
    start = time.monotonic()
    try:
        processes.render(datetime.now(), {"messages": [{"role": "user", "content": "a b"}]})
        end = "text"
    except UsageError as error:
        end = "limit" if "; use another one" in str(error) else "error"
    except BundleError:
        end = "no template"
    if (seconds := time.monotonic() - start) > _MAX_RENDERING:
        problems.append(f"took {seconds:.1f} s")
    try:
        other = [{"role": "other", "content": ""}]
        if processes.render(datetime.now(), {"messages": other}) != "fine":
            problems.append("the next chat is another text")
    except (UsageError, BundleError) as error:
        if "processor time" not in str(error) and end != "no template":  # constants do it again
            problems.append(f"the next chat ended in {error}")
    processes.close()
    return end, problems


def _chat(server: Server, model: str, content: str) -> tuple[int, str]:
    """Return the status of a chat and its message of an error."""
    messages = [{"role": "user", "content": content}]
    path = "/v1/chat/completions"
    status, body = server.ask(path, model=model, messages=messages, max_tokens=1)
    document: dict[str, Any] = json.loads(body or b"{}")
    return status, str(document.get("error", {}).get("message", ""))


def served(directory: Path, source: random.Random) -> tuple[Counter[str], list[str]]:
    """Attack a server; return counts of answers, and problems."""
    bundles = {}
    for name, template in (
        ("tiny", "{{ messages[0].content }}"),
        ("folded", _FOLDED),
        ("slow", _SERVED),
    ):
        bundles[name] = tiny_bundle(directory / name)
        put_chat(bundles[name], template)
    problems: list[str] = []
    counts: Counter[str] = Counter()
    chats = [("folded", "a"), *(("slow", word) for word in _WORDS)]
    source.shuffle(chats)
    others = [f"{name}={bundles[name]}" for name in ("folded", "slow")]
    with started(bundles["tiny"], *others) as server, ThreadPoolExecutor(_CLIENTS) as pool:
        with (
            repeated(lambda: server.ask("/health/live")) as polls,
            repeated(lambda: _chat(server, "tiny", "a")) as sound,
        ):
            answers = list(pool.map(lambda one: _chat(server, *one), chats))
        for (model, word), (status, message) in zip(chats, answers, strict=True):
            counts[f"{model} {status}"] += 1
            if status != 400 or "chat template" not in message:
                problems.append(f"{model}, {word}: {status} {message}")
        if wrong := {status for status, _ in (*polls, *sound)} - {200}:
            problems.append(f"/health/live and the sound bundle's chats: {wrong}")
        gap = max(waited for _, waited in polls)
        if gap > _MAX_GAP:
            problems.append(f"/health/live waited {gap:.1f} s")
        status, message = _chat(server, "slow", "fine")
        if status != 200:
            problems.append(f"the next chat: {status} {message}")
        problems += _ended(server, pool)
    counts[f"health in {gap:.2f} s at most"] += 1
    return counts, problems


def _ended(server: Server, pool: ThreadPoolExecutor) -> Iterator[str]:
    """Stop the server while it renders; yield problems."""
    left = [pool.submit(_chat, server, "slow", word) for word in ("round", "loop")]
    time.sleep(0.5)
    below = _descendants(server.process.pid)
    start = time.monotonic()
    if (code := server.stop()) != 0:
        yield f"the server ended with {code}"
    if (seconds := time.monotonic() - start) > _MAX_ENDING:
        yield f"the server took {seconds:.1f} s to end"
    for future in left:
        if (status := future.result()[0]) not in (0, 400, 503):
            yield f"a chat at the end: {status}"
    if remaining := [pid for pid in below if is_running(pid)]:
        yield f"processes are left behind: {remaining}"


def _descendants(pid: int) -> set[int]:
    below = child_processes(pid)
    return below.union(*map(_descendants, below))


def main() -> int:
    """Print counts, and every template and chat that ended in a wrong way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="number of random templates")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    source = random.Random(arguments.seed)
    ends: Counter[str] = Counter()
    failures = 0
    for _, template in zip(range(arguments.count), templates(source), strict=False):
        end, problems = attacked(template)
        ends[end] += 1
        failures += bool(problems)
        for problem in problems:
            print(f"{template}\n    {problem}")
    with tempfile.TemporaryDirectory(prefix="templates-") as temporary:
        counts, problems = served(Path(temporary), source)
    for problem in problems:
        print(problem)
    failures += len(problems)
    print(
        f"{arguments.count} templates: {dict(ends)}; a server: {dict(counts)}; {failures} failures"
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
