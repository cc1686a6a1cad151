"""Finds known secret values in text, in every form in which a service may send them back.

Always true: a text or a record that comes back from here holds no value in any of these forms: as it is, JSON-escaped,
percent-encoded, as HTML entities, in base64, and interrupted by white space, line ends, quotation marks or commas. Text
without such a value comes back as the same object. The time is linear in the length of the text. Numbers never change.
What is nested deeper in a record than anybody looks is not passed on: a text stands in its place. An object of another
kind is replaced as a whole if its text, its repr or one of its attributes shows a value.

A value of 8 or more characters is found anywhere. A value of 4 to 7 characters that are not all letters is found only
as it is and as a whole word. Other values are not found: `EMPTY` or `test` as a key would remove words of ordinary
text. A value that was changed in another way (reversed, encrypted, in hexadecimal) is not found.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import numbers
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

REDACTED = "[redacted]"
MIN_LENGTH = 8  # of a value that is found anywhere
MIN_WORD_LENGTH = 4  # of a value that is found as a whole word

_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_IGNORED = "\"',"  # also between the parts of a list that holds a value in pieces
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ESCAPE = (
    r"\\+(?:u(?P<unicode>[0-9a-fA-F]{4})|[nrtbf])?|%(?P<percent>[0-9a-fA-F]{2})"
    r"|&(?:(?P<entity>amp|lt|gt|quot|apos)|\#(?P<decimal>[0-9]{1,5})|\#[xX](?P<hexadecimal>[0-9a-fA-F]{1,4}));"
)
_ESCAPES = re.compile(_ESCAPE)
_UNITS = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
# The same for a quick look at the bytes of a text. Each begins with one fixed byte, so that the search can skip ahead.
_PERCENT = rb"%(?P<percent>[0-9a-fA-F]{2})"
_ENTITY = rb"&(?:(?P<entity>amp|lt|gt|quot|apos)|\#(?P<decimal>[0-9]{1,5})|\#[xX](?P<hexadecimal>[0-9a-fA-F]{1,4}));"
_QUICK_PERCENT = re.compile(_PERCENT)
_QUICK_ENTITY = re.compile(_ENTITY)
_QUICK_BOTH = re.compile(_PERCENT + b"|" + _ENTITY)  # in one pass: what one of them makes is no part of the other
_QUICK_UNICODE = re.compile(rb"u([0-9a-fA-F]{4})")
_QUICK_IGNORED = b" \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\\" + _IGNORED.encode()
_ODD_BLANKS = re.compile(rf"[\u0085\u00a0\u1680\u2000-\u200d\u2028\u2029\u202f\u205f\u3000{_INVISIBLE}]+")
_MAX_DEPTH = 64
_CONTAINERS = (Mapping, list, tuple, AbstractSet)
_TOO_DEEP = "(nested too deeply to look for secrets)"


class SecretValues:
    """A fixed set of values to remove."""

    def __init__(self, values: Iterable[str]) -> None:
        stripped = {value.strip() for value in values}
        whole = {value for value in stripped if len(_squeezed(value)) >= MIN_LENGTH and value not in REDACTED}
        words = {one for one in stripped - whole if len(one) >= MIN_WORD_LENGTH and not one.isalpha()}
        self._plain = tuple(sorted(whole, key=len, reverse=True))
        self._squeezed = tuple({form for value in whole for form in _forms(value)})
        # A value may hold "%80" itself, which the quick look decodes to one byte.
        quick = {form for value in whole if len(form := _quickly_squeezed(value)) >= MIN_LENGTH}
        self._quick_forms = tuple(quick.union(map(_as_bytes, self._squeezed)))
        self._words = _whole_words(words) if words else None

    def redact(self, text: str) -> str:
        """Returns the text without the values."""
        if self._words is not None:
            text = self._words.sub(REDACTED, text)
        if not self._squeezed or not self._is_in(text):
            return text
        for value in self._plain:
            text = text.replace(value, REDACTED)
        return self._without_forms(text)

    def are_in(self, text: str) -> bool:
        return self._is_in(text) or (self._words is not None and self._words.search(text) is not None)

    def are_in_record(self, value: Any) -> bool:
        """Whether `redact_record` would change the plain data."""
        if not self._knows_any:
            return False
        texts = list(_texts(value, 0))
        if _TOO_DEEP in texts:
            return True
        return self._is_in("".join(texts)) or (self._words is not None and self.are_in(" ".join(texts)))

    def redact_record(self, value: Any) -> Any:
        """Returns plain data with the values removed from its texts, also from the names in a mapping.

        A value whose pieces lie in several texts of one list or mapping empties all of these texts, and the names as
        well if pieces lie in names.
        """
        return self._redact_inside(value, 0) if self._knows_any else value

    @property
    def _knows_any(self) -> bool:
        return bool(self._squeezed) or self._words is not None

    def _redact_inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if not isinstance(value, _CONTAINERS):
            return REDACTED if self.are_in(_shown(value)) else value
        if depth > _MAX_DEPTH:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            made: Any = _with_distinct_names(
                (self._redact_name(key), self._redact_inside(item, depth + 1)) for key, item in value.items()
            )
        else:
            made = [self._redact_inside(item, depth + 1) for item in value]
            made = tuple(made) if isinstance(value, tuple) else made
        if self._is_in_pieces(made, depth):
            made = _emptied(made, names=False)
            if self._is_in_pieces(made, depth):
                made = _emptied(made, names=True)
        return made

    def _redact_name(self, name: Any) -> Any:
        if isinstance(name, str):
            return self.redact(name)
        return REDACTED if self.are_in_record(name) else name  # a tuple, a frozen set or an object

    def _is_in_pieces(self, made: Any, depth: int) -> bool:
        return self._is_in("".join(text for text in _texts(made, depth) if text != REDACTED))

    def _is_in(self, text: str) -> bool:
        if not self._squeezed:
            return False
        squeezed = _quickly_squeezed(text)
        for form in self._quick_forms:
            if form in squeezed:
                return True
        # An escape may swallow the first characters of a value, as in "\\nvapi-..."; this looks without decoding.
        has_escapes = "\\" in text or "%" in text or "&" in text
        return has_escapes and any(value in text for value in self._plain)

    def _without_forms(self, text: str) -> str:
        """Removes every form. Finds it in the squeezed text, and cuts out the part of the text that it came from."""
        units = [(char, match.start(), match.end()) for match in _UNITS.finditer(text) if (char := _meant(match))]
        squeezed = "".join(char for char, _, _ in units)
        pieces: list[str] = []
        kept_from = 0
        for first, last in _spans(squeezed, self._squeezed):
            start, end = units[first][1], units[last][2]
            pieces += [text[kept_from:start], REDACTED]
            kept_from = end
        return "".join([*pieces, text[kept_from:]])


def parts_of_value(value: str) -> Iterator[str]:
    """Yields the value and the secrets inside it: after `Bearer`, and the password in the base64 after `Basic`."""
    value = value.strip()
    yield value
    scheme, _, rest = value.partition(" ")
    if not rest or not scheme.isalpha():
        return
    yield rest.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            pair = base64.b64decode(rest.strip(), validate=True).decode()
            yield pair
            yield pair.partition(":")[2]


def parts_of_address(address: str) -> Iterator[str]:
    """Yields user name and password of an address, as it has them and decoded, with the password alone as well."""
    try:
        userinfo = urllib.parse.urlsplit(address).netloc.rpartition("@")[0]
    except ValueError:  # for example an IPv6 address without its closing bracket
        return
    if userinfo:
        pair = urllib.parse.unquote(userinfo)
        yield from (userinfo, pair, pair.partition(":")[2])


def _forms(value: str) -> Iterator[str]:
    """Yields the squeezed texts by which a value is recognised; all are long enough."""
    raw = value.encode("utf-8", "surrogatepass")
    variants = {value, raw.decode("latin-1"), urllib.parse.quote_plus(value, errors="replace")}
    for skipped in range(3):  # the value may begin at any byte of a group of three
        encoded = base64.b64encode(b"\0" * skipped + raw).decode().rstrip("=")
        if (skipped + len(raw)) % 3:
            encoded = encoded[:-1]  # depends on what follows
        encoded = encoded[(0, 2, 3)[skipped] :]
        variants |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    # White space may interrupt an escape that is part of the value itself: then the text keeps it undecoded.
    undecoded = _without_ignored(value.replace("\\", ""))
    for form in {undecoded, *map(_squeezed, variants)}:
        if len(form) >= MIN_LENGTH:
            yield form


def _squeezed(text: str) -> str:
    """Decodes the escapes of a text, and removes white space, quotation marks and commas."""
    if "\\" in text or "%" in text or "&" in text:
        text = _ESCAPES.sub(_decoded, text)
    return _without_ignored(text)


def _without_ignored(text: str) -> str:
    text = "".join(text.split())
    for char in (*_IGNORED, "\\"):
        text = text.replace(char, "")
    if not text.isascii():
        for char in _INVISIBLE:
            text = text.replace(char, "")
    return text


def _quickly_squeezed(text: str) -> bytes:
    """Returns the bytes of `_squeezed`, in a small part of its time."""
    if not text.isascii():
        text = _ODD_BLANKS.sub("", text)
    data = _as_bytes(text)
    first, *others = data.split(b"\\")
    data = _quickly_decoded(first)
    if others:  # decoded one by one: what lies on both sides of a backslash is no escape
        data += b"".join([_after_backslash(part) for part in others])
    return data.translate(None, _QUICK_IGNORED)


def _after_backslash(part: bytes) -> bytes:
    if part[:1] in b"nrtbf":  # also an empty part
        return _quickly_decoded(part[1:])
    if part[:1] == b"u" and (match := _QUICK_UNICODE.match(part)) is not None:
        char = chr(int(match[1], 16))
        return (b"" if _ODD_BLANKS.match(char) else _as_bytes(char)) + _quickly_decoded(part[match.end() :])
    return _quickly_decoded(part)


def _quickly_decoded(data: bytes) -> bytes:
    if b"%" in data:
        return (_QUICK_BOTH if b"&" in data else _QUICK_PERCENT).sub(_quick_char, data)
    return _QUICK_ENTITY.sub(_quick_char, data) if b"&" in data else data


def _quick_char(match: re.Match[bytes]) -> bytes:
    found = match.groupdict()
    if found.get("percent") is not None:
        return bytes([int(found["percent"], 16)])
    if found["entity"] is not None:
        return _ENTITIES[found["entity"].decode()].encode()
    code = int(found["decimal"]) if found["decimal"] is not None else int(found["hexadecimal"], 16)
    return _as_bytes(chr(code))


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(match: re.Match[str]) -> str:
    if (code := match["unicode"] or match["percent"] or match["hexadecimal"]) is not None:
        return chr(int(code, 16))
    if match["decimal"] is not None:
        return chr(int(match["decimal"]))
    return _ENTITIES.get(match["entity"] or "", "")


def _meant(match: re.Match[str]) -> str:
    """Returns the character that a unit of text stands for in the squeezed text; "" if it is left out."""
    unit = match[0]
    char = unit if len(unit) == 1 and unit != "\\" else _decoded(match)
    return "" if char.isspace() or char == "\\" or char in _IGNORED or char in _INVISIBLE else char


def _spans(squeezed: str, forms: Iterable[str]) -> list[tuple[int, int]]:
    """Returns first and last place of every form, with spans that touch or overlap made one."""
    found = sorted((at, at + len(form) - 1) for form in forms for at in _places(squeezed, form))
    spans: list[tuple[int, int]] = []
    for first, last in found:
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return spans


def _places(text: str, form: str) -> Iterator[int]:
    at = text.find(form)
    while at >= 0:
        yield at
        at = text.find(form, at + 1)


def _whole_words(words: AbstractSet[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{alternatives})(?![A-Za-z0-9_])")


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif not isinstance(value, _CONTAINERS):
        yield _shown(value)
    elif depth > _MAX_DEPTH:
        yield _TOO_DEEP
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key, depth + 1)
            yield from _texts(item, depth + 1)
    else:
        for item in value:
            yield from _texts(item, depth + 1)


def _emptied(value: Any, *, names: bool) -> Any:
    """Returns a record with `REDACTED` for each of its texts, and for each name in a mapping if `names` says so."""
    if isinstance(value, str):
        return REDACTED
    if isinstance(value, Mapping):
        return _with_distinct_names(
            (REDACTED if names and not _is_number(key) else key, _emptied(item, names=names))
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        items = [_emptied(item, names=names) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value if _is_number(value) else REDACTED


def _shown(value: object) -> str:
    """Returns what an object that is no text and no container shows where it is written or pickled."""
    if _is_number(value):
        return ""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "ignore")
    shown: dict[str, None] = {}
    for show in (str, repr, lambda one: repr(getattr(one, "__dict__", ""))):
        with contextlib.suppress(Exception):  # raised by the user's own method
            shown[show(value)] = None
    return " ".join(shown)


def _is_number(value: object) -> bool:
    """Whether the value is a number or None, or an array of numbers, whose text would take long to make."""
    if value is None or isinstance(value, numbers.Number):
        return True
    kind = getattr(value, "dtype", None)  # of numpy, torch and pandas
    return kind is not None and getattr(kind, "kind", "f") not in "OSTUV"


def _with_distinct_names(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns a mapping of all pairs. Numbers names that became equal, because each has a value of its own."""
    made: dict[Any, Any] = {}
    for name, item in pairs:
        number, own = 1, name
        while own in made:
            number += 1
            own = f"{name} {number}"
        made[own] = item
    return made
