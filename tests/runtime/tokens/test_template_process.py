"""A runaway template fails only its own chat; others render as in transformers."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime

import pytest
from attack.processes import child_processes
from transformers.utils import chat_template_utils

from skipdec.engines.errors import BundleError, ClosedError, SkipDecError, UsageError
from skipdec.runtime.tokens import template_process
from skipdec.runtime.tokens.template_process import TemplateProcesses

TOO_LONG = "processor time|longer than"
TOO_MUCH = "MiB of memory"
RUNAWAY = {
    "{{ 5 | round(-1000000000) }}": TOO_LONG,  # during compilation
    "{% if messages %}{{ messages | length | round(-1000000000) }}{% endif %}": TOO_LONG,
    "{{ (messages | length + 1).to_bytes(3000000000, 'big') }}": TOO_MUCH,
    "{% for i in range(1999) %}{{ 'x' * 9999 }}{% endfor %}": TOO_MUCH,  # of rendered text
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{% for i in range(10 ** 9) %}{% endfor %}": "Range too big",
}
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ range.__self__.open('/etc/passwd').read() }}",
    "{{ raise_exception.__globals__['sys'] }}",
    "{{ dict.__call__.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
)
ORDINARY = (
    "{% for m in messages %}{{ m.content.replace('b', 'c') }}{% endfor %}",
    "{{ '%s and %d' | format(messages[0].role, 5) }}",
    "{{ messages[0].content | wordwrap(5) }}{{ messages[0].content | center(40) }}",
    "{% for pair in [1, 2, 3] | batch(2) %}{{ pair }}{% endfor %}{{ [1, 2, 3] | slice(2) | list }}",
    "{{ messages | pprint }}{{ messages[0].content.ljust(30) }}|{{ '7'.zfill(3) }}",
    "{{ messages[0].content.encode() }}{{ messages[0] | tojson(indent=2) }}{{ 2 ** 70 }}",
    "{{ dict(a=1).items() | list }}{{ dict.fromkeys(['a']) }}{{ namespace(self=3).self }}",
    "{% generation %}{% set inner = 1 %}{{ messages[0].role }}{% endgeneration %}{{ inner }}",
    "{{ lipsum is defined }}{{ '<&>' | e }}{{ 'a-b' | title }}{{ messages | map('length') | sum }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{{ 'x' | upper }}\n{% if true %}\n  trimmed\n  {% endif %}\n",
)
VARIABLES = {"messages": [{"role": "user", "content": "ab ä < \U0001f600 ba"}]}
NOW = datetime(2026, 3, 7)


@pytest.mark.parametrize("source", RUNAWAY, ids=lambda source: source[:40])
def test_a_runaway_template_fails_and_the_next_chat_renders(source: str) -> None:
    wanted = "{% if messages[0].role == 'other' %}fine{% else %}" + source + "{% endif %}"
    folds = "messages" not in source and "round" in source
    processes = TemplateProcesses(source if folds else wanted, "template")
    with pytest.raises(UsageError, match=f"chat template .*({RUNAWAY[source]})"):
        processes.render(NOW, VARIABLES)
    if not folds:
        other = {"messages": [{"role": "other", "content": ""}]}
        assert processes.render(NOW, other) == "fine"
    processes.close()


@pytest.fixture(scope="module")
def escaping() -> Iterator[TemplateProcesses]:
    """Yield a template that tries the escape selected by the chat's ``number``."""
    ways = (
        f"{{% if number == {number} %}}{source}{{% endif %}}"
        for number, source in enumerate(ESCAPES)
    )
    made = TemplateProcesses("".join(ways), "template")
    assert made.render(NOW, VARIABLES | {"number": None}) == ""
    yield made
    made.close()


@pytest.mark.parametrize("number", range(len(ESCAPES)), ids=ESCAPES.__getitem__)
def test_an_escape_from_the_sandbox_is_refused(escaping: TemplateProcesses, number: int) -> None:
    with pytest.raises(UsageError, match=r"chat template \| can't render these messages"):
        escaping.render(NOW, VARIABLES | {"number": number})


def test_templates_render_as_in_transformers() -> None:
    source = "\n".join(ORDINARY)
    (theirs,), _ = chat_template_utils.render_jinja_template(
        [VARIABLES["messages"]], chat_template=source
    )
    processes = TemplateProcesses(source, "template")
    assert processes.render(NOW, VARIABLES) == theirs
    processes.close()


@pytest.mark.parametrize("source", ["{% for %}", "{{ x | nothing }}"])
def test_an_invalid_template_is_a_bundle_error(source: str) -> None:
    with pytest.raises(BundleError, match=r"file \| is not a template"):
        TemplateProcesses(source, "file").variables()


def test_the_variables_a_template_reads_are_known() -> None:
    source = "{% if not day is defined %}{% set day = 1 %}{% endif %}{{ day }}{{ range(x) }}"
    assert TemplateProcesses(source, "file").variables() == {"day", "x"}


@pytest.fixture
def processes() -> Iterator[TemplateProcesses]:
    made = TemplateProcesses("{{ messages[0].content }}", "template")
    yield made
    made.close()


def test_a_killed_process_is_replaced(processes: TemplateProcesses) -> None:
    before = child_processes()
    assert processes.render(NOW, VARIABLES) == VARIABLES["messages"][0]["content"]
    (pid,) = child_processes() - before
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.render(NOW, VARIABLES) == VARIABLES["messages"][0]["content"]
    assert len(child_processes() - before) == 1


def test_threads_share_a_few_processes(
    processes: TemplateProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "MAX_PROCESSES", 2)
    before, texts = child_processes(), []

    def render(number: int) -> None:
        for index in range(20):
            text = f"{number} {index}"
            texts.append(processes.render(NOW, {"messages": [{"content": text}]}) == text)

    threads = [threading.Thread(target=render, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [True] * 120
    assert 1 <= len(child_processes() - before) <= 2


def test_closing_ends_running_renders_and_refuses_new_ones() -> None:
    before, ends = child_processes(), []
    source = "{{ messages[0].content | length | round(-1000000000) if messages else 'fine' }}"
    processes = TemplateProcesses(source, "template")
    assert processes.render(NOW, {"messages": []}) == "fine"

    def render() -> None:
        try:
            processes.render(NOW, VARIABLES)
        except SkipDecError as error:
            ends.append(type(error))

    thread = threading.Thread(target=render)
    thread.start()
    processes.close()
    thread.join()
    assert ends == [ClosedError]
    assert not child_processes() - before
    with pytest.raises(ClosedError, match="is closed"):
        processes.render(NOW, VARIABLES)


def test_processes_end_with_their_template() -> None:
    before = child_processes()
    processes = TemplateProcesses("x", "template")
    assert processes.render(NOW, {}) == "x"
    del processes
    gc.collect()
    assert not child_processes() - before
