"""Patterns for formats (JSON Schema validation 7.3) that llguidance does not implement, or for which it accepts too
much.

Some patterns accept less than the format does. A regular expression cannot check everything: it cannot limit the length
of an encoded host name, for example, or compare the two ends of a character range. So a pattern refuses the strings
whose validity it cannot check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from services.router.grammar.schema_rewrites.document import Schema, SchemaDocument, demand
from services.router.grammar.schema_rewrites.regex_format import regular_expression

_HEX = "[0-9A-Fa-f]"
_ENCODED = f"%{_HEX}{{2}}"
# Non-ASCII characters of IRIs (`ucschar` in RFC 3987 2.2), without the bidirectional formatting characters that section
# 4.1 forbids. Private-use characters are not included.
_UCS = (
    "\\x{A0}-\\x{1FFF}\\x{2030}-\\x{2060}\\x{2070}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}"
    "\\x{10000}-\\x{1FFFD}\\x{20000}-\\x{2FFFD}"
)
_JSON_POINTER = "(?:/(?:[^/~]|~[01])*)*"


def formats(schema: Schema, document: SchemaDocument) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name in _OF_THE_LIBRARY:
        return
    del schema["format"]
    # Unknown formats assert nothing (JSON Schema validation 7.2.3): for example OpenAPI's `password` and `binary`, and
    # Pydantic's `path`.
    if name in _PATTERNS:
        # Puts the pattern into a definition, because many members can have the same format, and some patterns are long.
        demand(schema, {"$ref": document.define(f"format-{name}", {"pattern": format_pattern(name)})})


def format_pattern(name: str) -> str | None:
    """Returns a regular expression for the format's strings. If the format is unknown, the expression matches every
    string. Returns None if there is no expression, because only llguidance implements the format."""
    if name == "uuid":  # RFC 9562 4
        return f"^{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}$"
    if name in _OF_THE_LIBRARY:
        return None
    pattern = _PATTERNS.get(name)
    return "^[\\s\\S]*$" if pattern is None else f"^(?:{pattern()})$"


def _date() -> str:
    """Returns a pattern for dates (RFC 3339 5.6 and 5.7). llguidance allows February 29 in every year; this pattern
    allows it only in leap years. The pattern excludes the year 0."""
    year = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
    leap = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
    days = (
        "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
        "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
        "02-(?:0[1-9]|1[0-9]|2[0-8])",
    )
    return f"{year}-(?:{'|'.join(days)})|{leap}-02-29"


def _time() -> str:
    """Returns a pattern for times (RFC 3339 5.6 and 5.7). llguidance allows a leap second in every minute; this pattern
    allows it only at 23:59:60 UTC. The pattern allows fractions of at most nine digits, which time parsers accept.
    Without a limit, a confused model would write digits until it reaches its output limit."""
    fraction = "(?:\\.[0-9]{1,9})?"
    usual = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{fraction}(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    return f"{usual}|23:59:60{fraction}(?:[zZ]|[+-]00:00)"


def _date_time() -> str:
    return f"(?:{_date()})[tT](?:{_time()})"


def _json_pointer() -> str:
    """Returns a pattern for JSON pointers (RFC 6901 3)."""
    return _JSON_POINTER


def _relative_json_pointer() -> str:
    """Returns a pattern for relative JSON pointers (draft-bhutton-relative-json-pointer-00 3), without index
    manipulation, which earlier drafts lack."""
    return f"(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER})"


def _resource_identifier(others: str, *, relative: bool) -> str:
    """Returns a pattern for URIs (RFC 3986 appendix A) and, if `relative` is true, also for relative references.
    `others`: non-ASCII characters to allow, for IRIs (RFC 3987 2.2)."""
    unreserved = f"A-Za-z0-9._~!$&'()*+,;={others}\\-"
    segment = f"(?:[{unreserved}:@]|{_ENCODED})"
    h16 = f"{_HEX}{{1,4}}"
    shortened = "|".join(f"(?:{h16}:){{1,{left}}}(?::{h16}){{1,{7 - left}}}" for left in range(1, 7))
    address = f"(?:{h16}:){{7}}{h16}|(?:{h16}:){{1,7}}:|:(?::{h16}){{1,7}}|::|{shortened}"
    host = f"(?:\\[(?:{address})\\]|(?:[{unreserved}]|{_ENCODED})*)"
    authority = f"(?:(?:[{unreserved}:]|{_ENCODED})*@)?{host}(?::[0-9]*)?"
    further = f"(?:/{segment}*)*"
    from_the_top = f"//{authority}{further}|/(?:{segment}+{further})?"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{from_the_top}|{segment}+{further})?"
    # The first segment of a relative reference must not contain a colon. The text before the colon would be read as a
    # scheme.
    from_here = f"(?:{from_the_top}|(?:[{unreserved}@]|{_ENCODED})+{further})?"
    tail = f"(?:[{unreserved}:@/?]|{_ENCODED})*"
    start = f"(?:{absolute}|{from_here})" if relative else absolute
    return f"{start}(?:\\?{tail})?(?:#{tail})?"


def _uri_template() -> str:
    """Returns the pattern of a URI template (RFC 6570, section 2), without the reserved operators."""
    name = f"(?:[A-Za-z0-9_]|{_ENCODED})(?:\\.?(?:[A-Za-z0-9_]|{_ENCODED}))*"
    variable = f"{name}(?:\\*|:[1-9][0-9]{{0,3}})?"
    literal = f"[!#$&(-;=?-\\[\\]_a-z~{_UCS}]"
    return f"(?:{literal}|{_ENCODED}|\\{{[+#./;?&]?{variable}(?:,{variable})*\\}})*"


# Letters that RFC 5892 permits in every position, from scripts that are written left to right: Latin, Greek, Cyrillic,
# kana, Chinese and Korean.
_LETTERS = (
    "\\x{DF}-\\x{F6}\\x{F8}-\\x{FF}\\x{3B1}-\\x{3C9}\\x{430}-\\x{45F}\\x{3041}-\\x{3096}\\x{30A1}-\\x{30FA}"
    "\\x{4E00}-\\x{9FA5}\\x{AC00}-\\x{D7A3}"
)


# Labels of host names, with at most 61 and 25 characters. They exclude consecutive hyphens, because not every label
# that begins with `xn--` is allowed.
_LONG_LABEL, _SHORT_LABEL = (f"[0-9A-Za-z](?:-?[0-9A-Za-z]){{0,{more}}}" for more in (30, 12))


def _host_name() -> str:
    """Returns a pattern for host names (RFC 1123 2.1) of at most 253 characters."""
    return f"{_LONG_LABEL}(?:\\.{_LONG_LABEL}){{0,3}}|{_SHORT_LABEL}(?:\\.{_SHORT_LABEL}){{0,8}}"


def _international_host_name() -> str:
    """Returns a pattern for internationalized host names (RFC 5890 2.3.2.3). The pattern limits the number of non-ASCII
    letters, because each takes up to six octets when it is encoded. An encoded label thus has at most 63 octets, and an
    encoded name at most 253."""
    letter = f"[0-9a-z{_LETTERS}]"
    few = f"[0-9a-z]{{0,15}}[{_LETTERS}][0-9a-z]{{0,15}}(?:[{_LETTERS}][0-9a-z]{{0,8}})?"
    label = f"(?:{_LONG_LABEL}|{letter}(?:-?{letter}){{0,7}}|{few})"
    return f"{label}(?:\\.{label}){{0,3}}|{_host_name()}"


def _mailbox() -> str:
    """Returns the pattern of a mailbox (RFC 6531, section 3.3) with at most 64 octets before the `@` and without quoted
    strings."""
    text = "0-9A-Za-z!#$%&'*+/=?^_`{|}~\\-"
    plain = f"[{text}]{{1,31}}(?:\\.[{text}]{{1,31}})?"
    foreign = f"[{text}{_LETTERS}]{{1,10}}(?:\\.[{text}{_LETTERS}]{{1,10}})?"
    return f"(?:{plain}|{foreign})@(?:{_international_host_name()})"


# Formats that llguidance implements correctly.
_OF_THE_LIBRARY = frozenset({"duration", "email", "ipv4", "ipv6", "uri", "uuid"})
_PATTERNS: dict[str, Callable[[], str]] = {
    "date": _date,
    "date-time": _date_time,
    "hostname": _host_name,
    "idn-email": _mailbox,
    "idn-hostname": _international_host_name,
    "iri": functools.partial(_resource_identifier, _UCS, relative=False),
    "iri-reference": functools.partial(_resource_identifier, _UCS, relative=True),
    "json-pointer": _json_pointer,
    "regex": regular_expression,
    "relative-json-pointer": _relative_json_pointer,
    "time": _time,
    "uri-reference": functools.partial(_resource_identifier, "", relative=True),
    "uri-template": _uri_template,
}
