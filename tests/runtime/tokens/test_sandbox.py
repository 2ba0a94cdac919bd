"""Hostile templates end in an error, within limits of time and memory."""

from __future__ import annotations

import pytest

from skipdec.engines.errors import UsageError
from skipdec.runtime.tokens import template_limits
from skipdec.runtime.tokens.sandbox import Sandbox

DOUBLING = (
    "{{% set ns = namespace(s={0}) %}}"
    "{{% for i in range(99) %}}{{% set ns.s = {1} %}}{{% endfor %}}"
)
LIMITS = {
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "rounds of",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}": "run",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "recursion",
    "{{ range(10**9) | list }}": "a range of 1,000,000,000 numbers",
    "{{ 'x' * 10**9 }}": "a value of 1,000,000,000 characters",
    "{{ [0] * 10**9 }}": "a value of 1,000,000,000 characters",
    "{{ 10 ** 9999 }}": "an integer of",
    "{{ 2 ** (10 ** 9) }}": "an integer of",
    "{{ '%999999999d' % 1 }}": "formats to a width",
    "{{ '%*d' % (999999999, 1) }}": "formats to a width",
    "{{ '{:999999999}'.format(1) }}": "formats to a width",
    "{{ '{:{}}'.format(1, 999999999) }}": "formats to a width",
    "{{ strftime_now('%999999999d') }}": "formats to a width",
    "{{ ('x' * 4000).replace('', 'y' * 4000) }}": "a value of",
    "{{ ('x' * 4000) | replace('x', 'y' * 4000) }}": "a value of",
    "{{ ['x' * 4000000, 'y' * 4000000] | join }}": "a value of",
    "{{ ('x' * 4000000).join('abc') }}": "a value of",
    "{{ ('\n' * 4000000) | indent(60) }}": "a value of",
    "{{ {} | tojson(indent=10**9) }}": "indents by",
    "{{ ('a b' * 999999).split(' ') | sort }}": "filters 1,000,000 items",
    "{{ (['a' * 4000000] * 99999) | map('upper') | list }}": "makes more than",
    "{% set x = 'a' * 4000000 %}" + "{% set y = x.upper() %}" * 20: "makes more than",
    "{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}": "writes more than",
    "{% set a %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}": "writes more",
    DOUBLING.format("'x'", "ns.s ~ ns.s"): "a value of",
    DOUBLING.format("'x'", "ns.s + ns.s"): "a value of",
    DOUBLING.format("['x']", "[ns.s, ns.s]") + "{{ ns.s }}": "writes more than",
    DOUBLING.format("['x']", "[ns.s, ns.s]") + "{{ ns.s | tojson }}": "a value of",
    DOUBLING.format("['x']", "[ns.s, ns.s]") + "{{ ns.s | string }}": "a value of",
}
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ range.__self__.open('/etc/passwd').read() }}",
    "{{ raise_exception.__globals__['sys'] }}",
    "{{ dict.__closure__[0] }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ messages.append(1) }}",
    "{{ namespace(__class__=1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.getcwd() }}",
)


@pytest.mark.parametrize("source", LIMITS, ids=lambda source: source[:48])
def test_a_runaway_template_ends_in_an_error(source: str) -> None:
    with pytest.raises(UsageError, match=LIMITS[source]):
        Sandbox(source).render({"messages": []})


@pytest.mark.parametrize("source", ESCAPES)
def test_what_leaves_the_sandbox_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="chat template"):
        Sandbox(source).render({"messages": []})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9) %}{% endfor %}",
        "{{ messages | sort }}",
        "{{ messages.count(1) }}",
        "{{ messages[0] + 1 }}",
        "{{ 1 in messages }}",
        "{{ messages[0] < 1 < 2 }}",
    ],
)
def test_time_is_limited_with_and_without_loops(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.0)
    with pytest.raises(UsageError, match="runs longer than 0 s"):
        Sandbox(source).render({"messages": [1]})


def test_renderings_do_not_share_their_limits() -> None:
    program = Sandbox("{% for i in range(99999) %}{{ '' }}{% endfor %}x")
    assert [program.render({}) for _ in range(4)] == ["x"] * 4
