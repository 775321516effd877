"""Chat templates that would run forever, take all memory or write an endless text."""

from __future__ import annotations

_LOOP = "{% for a in range(100000) %}"
_END = "{% endfor %}"
# A namespace's value `v` is replaced 60 times by twice itself.
_DOUBLED = "{% set n = namespace(v=START) %}{% for i in range(60) %}{% set n.v = TWICE %}{% endfor %}{{ n.v }}"


def _doubled(start: str, twice: str) -> str:
    return _DOUBLED.replace("START", start).replace("TWICE", twice)


TEMPLATES = {
    # Time.
    "a loop of 10^10": _LOOP + _LOOP.replace("a", "b", 1) + _END + _END,
    "a loop of 10^9": "{% for a in range(1000000000) %}{% endfor %}",
    "10^5 sums of 10^5 numbers": _LOOP + "{{ range(100000) | sum }}" + _END,
    "10^5 sorted lists of 10^5 numbers": _LOOP + "{% set b = range(100000) | sort(reverse=true) %}" + _END,
    "recursion": "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "recursion 30 deep, twice each": (
        "{% macro m(x) %}{% if x %}{{ m(x - 1) }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(30) }}"
    ),
    "a recursive loop": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "callers in callers": (
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 30 + "a" + "{% endcall %}" * 30
    ),
    "a number of 4 * 10^8 digits": "{{ 9 ** (9 ** 9) }}",
    "a number of 10^6 digits as text": "{% set n = 7 ** 1200000 %}{{ n }}",
    "products of long numbers": _LOOP + "{% set b = (7 ** 100000) * (3 ** 100000) %}" + _END,
    "links in 200,000 brackets": "{{ ('(' * 200000 ~ 'http://a.b' ~ ')' * 200000) | urlize }}",
    "200,000 comments that do not end": "{{ ('<!--' * 200000) | striptags }}",
    # Memory.
    "a string of 10^9": "{{ 'a' * 1000000000 }}",
    "a list of 10^9": "{{ ([1] * 1000000000) | length }}",
    "a list of 10^9 to fill a batch": "{{ [1] | batch(1000000000, 0) | list | length }}",
    "a list of 10^9 slices": "{{ [1] | slice(1000000000) | list | length }}",
    "10^9 spaces by center": "{{ 'a' | center(1000000000) }}",
    "10^9 spaces by ljust": "{{ 'a'.ljust(1000000000) }}",
    "10^9 spaces by indent": "{{ 'a\nb' | indent(1000000000) }}",
    "10^9 zeros by a format": "{{ '%01000000000d' | format(1) }}",
    "10^9 spaces by a format with braces": "{{ '{:>1000000000}'.format(1) }}",
    "10^9 spaces by a date": "{{ strftime_now('%1000000000Y') }}",
    "10^12 characters by replace": "{{ ('a' * 1000000).replace('a', 'a' * 1000000) }}",
    "doubling": _doubled("'a'", "n.v ~ n.v"),
    "doubling of a list": _doubled("[1]", "n.v + n.v"),
    "doubling of lists in lists": _doubled("[1]", "[n.v, n.v]"),
    "10^6 paragraphs of filler": "{{ lipsum(n=1000000) }}",
    # The parser. A template of a request may have 65,536 characters.
    "30,000 brackets in one another": "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    "3,000 blocks in one another": "{% if 1 %}" * 3_000 + "{% endif %}" * 3_000,
    "30,000 additions": "{{ 1" + "+1" * 30_000 + " }}",
    "10,000 filters": "{{ 'a'" + "|upper" * 10_000 + " }}",
    "9,000 expressions": "{{ 1 }}" * 9_000,
    # What must not be reached.
    "itself, included": "{% include 'chat_template' %}{% import 'chat_template' as t %}",
    "Python's classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ '{0.__class__.__mro__}'.format(1) }}",
    "an error of 10^7 characters": "{{ raise_exception('a' * 10000000) }}",
}
