"""The one redactor: removes secrets from everything that is logged, stored, sent to another run or shown.

Always true: a secret value that this process knows leaves it in no form that `secret_values` finds. The process knows
the values of the settings (`api_key_env`, `$NAME` headers, secret-named settings, passwords in addresses), registered
where a reward is built from them, and the values of variables whose names say that they hold a secret.

`hide_secrets` removes only these values, and is for texts of judges and users. `redact` also removes everything that
looks like a key, and is for messages: when in doubt, it removes too much, because a lost word in an error message is
cheap and a key in a log is not. Redacting twice changes nothing more, and the time is linear in the length of any text.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import traceback
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rewardflow.errors import RewardflowError
from rewardflow.observe.secret_names import is_secret_setting, is_secret_variable
from rewardflow.observe.secret_values import MIN_LENGTH, REDACTED, SecretValues, parts_of_address, parts_of_value
from rewardflow.types import Reward

__all__ = ["REDACTED", "Redactor", "hide_in_record", "hide_in_reward", "hide_secrets", "redact", "register_secret"]

_MAX_REGISTERED = 200  # a run of weeks may change its key every hour; the newest count
_READ_EVERY_S = 1.0  # users set keys after the import, above all in notebooks
# Query parameters that never hold a secret.
_PLAIN_PARAMETERS = frozenset(
    {"alt", "api-version", "deployment", "format", "model", "project", "provider", "region", "stream", "version"}
)
_KEY_PARAMETERS = frozenset({"sig", "code"})


@dataclass(frozen=True, slots=True)
class _SecretPattern:
    """A pattern that finds secrets. `markers` and `hint` are quick checks of the lower-case text that rule it out."""

    markers: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: str = REDACTED
    hint: re.Pattern[str] | None = None

    def is_absent(self, lowered: str) -> bool:
        for marker in self.markers:
            if marker in lowered:
                return self.hint is not None and self.hint.search(lowered) is None
        return True


# Linear time: a repetition that can fail late never starts again inside the text it has already scanned.
_QUOTE = r"\\{0,3}[\"']?"  # also inside JSON that is itself a JSON string
_IS = rf"{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}(?:b(?=[\"']))?{_QUOTE}"  # between a name and its value
_NEXT = r"[\"'],\s{0,4}b?[\"']"  # the same in a list of header pairs
_SCHEME = r"(?:basic|bearer|digest|token|apikey|key|negotiate|aws4-hmac-sha256)[ \t]{1,4}"
_VALUE = r"(?!\[redacted\])(?:(?<=\")[^\"\n]+|(?<=')[^'\n]+|(?!(?:none|null|true|false)\b)[^\s\"'\\&,;<>()\[\]{}]{4,})"
# Each name begins with fixed letters, so the search can skip ahead; lookbehinds then check what precedes them.
_SECRET = (
    r"key(?:(?<=apikey)|(?<=api[ _-]key)|(?<=accesskey)|(?<=(?:access|secret)[_-]key)|(?<=private[_-]key)"
    r"|(?<=subscription[_-]key))(?:[ _-](?:id|provided))?"
    r"|token(?<=[_-]token)|secret|password|passwd|signature|credential"
)


def _prefixed(*prefixes: str, pattern: str, before: str = "A-Za-z0-9") -> _SecretPattern:
    """Finds keys with a service's prefix. A prefix after one of the characters `before` is part of a word."""
    start = "|".join(re.escape(prefix) for prefix in prefixes)
    markers = tuple(prefix.lower() for prefix in prefixes)
    return _SecretPattern(markers, re.compile(rf"(?<![{before}])(?:{start}){pattern}"))


def _named(*markers: str, pattern: str) -> _SecretPattern:
    """Finds values that follow a name. The name is group 1 and stays; upper or lower case is slow to search for."""
    hint = re.compile(pattern, re.ASCII)
    return _SecretPattern(markers, re.compile(pattern, re.ASCII | re.IGNORECASE), rf"\g<1>{REDACTED}", hint)


_PATTERNS = (
    _SecretPattern(
        ("private key-----",),
        re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL),
    ),
    _prefixed("sk-", pattern=r"[A-Za-z0-9_*-]{8,}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, ...
    _prefixed("hf_", "gsk_", "r8_", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", pattern=r"[A-Za-z0-9_]{16,}"),
    _prefixed("xai-", "csk-", "nvapi-", "pplx-", "glpat-", "xoxb-", "xoxp-", pattern=r"[A-Za-z0-9_-]{16,}"),
    _prefixed("AIza", "ya29.", pattern=r"[A-Za-z0-9_-]{16,}"),  # Google
    _prefixed("AKIA", "ASIA", pattern=r"[A-Z0-9]{16}(?![A-Za-z0-9])"),  # AWS
    _prefixed(  # JSON web tokens
        "eyJ", before="A-Za-z0-9_-", pattern=r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    ),
    _named("bearer", pattern=r"(bearer\s{1,4})(?!auth(?:entication|orization)\b)[a-z0-9._~+/=-]{8,}"),
    _named("authorization", pattern=rf"(authorization(?:{_IS}|{_NEXT})(?>{_SCHEME})?+){_VALUE}"),
    _named(
        *("key", "token", "secret", "passw", "signature", "credential"),
        pattern=rf"((?:{_SECRET})(?:{_IS}|{_NEXT})){_VALUE}",
    ),
    _SecretPattern(  # as shells write it
        ("_key=",), re.compile(rf"(?<=[A-Z0-9])(_KEY=[\"']?){_VALUE}"), rf"\g<1>{REDACTED}"
    ),
    _named("token", pattern=rf"(token(?:=|[\"']\s{{0,4}}[:=]\s{{0,4}}){_QUOTE}){_VALUE}"),  # "token: x" is prose
    _named("key=", "sig=", "token=", "code=", pattern=r"([?&](?:key|sig|token|code)=)[^&#\s\"'<>]+"),
    _named("://", pattern=r"(://)[^\s/?#\"'<>]+(?=@)"),  # user:password@host
)


class Redactor:
    """Redacts what the patterns above find, the secrets of one environment, and more values that are secret."""

    def __init__(self, environ: Mapping[str, str], registered: Iterable[str] = ()) -> None:
        self.values = SecretValues([*secrets_of(environ), *registered])

    def redact(self, text: str) -> str:
        text = self.values.redact(text)
        lowered = text.lower()
        for secret in _PATTERNS:
            if not secret.is_absent(lowered):
                text = secret.pattern.sub(secret.replacement, text)
                lowered = text.lower()
        return text


def secrets_of(environ: Mapping[str, str]) -> frozenset[str]:
    """Returns the values of variables with secret names, and the passwords in the addresses of all others."""
    found: set[str] = set()
    for name, value in environ.items():
        if "://" in value and "@" in value:
            found.update(parts_of_address(value))
        if is_secret_variable(name) and not (value.startswith("/") and os.path.exists(value)):
            found.update(parts_of_value(value))
    return frozenset(value for value in found if len(value.strip()) >= MIN_LENGTH)


# -- the values that this process knows --


class _ProcessSecrets:
    """The redactor of this process. Rebuilds it when a value is registered or the environment has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: dict[str, None] = {}
        self._of_environment: frozenset[str] = frozenset()
        self._redactor = Redactor({})
        self._read_at_s = -_READ_EVERY_S

    def register(self, values: Iterable[str]) -> None:
        new = [value for value in values if value not in self._registered]
        if not new:
            return
        with self._lock:
            self._registered = dict.fromkeys([*self._registered, *new][-_MAX_REGISTERED:])
            self._rebuild()

    def redactor(self) -> Redactor:
        now_s = time.monotonic()
        if now_s - self._read_at_s > _READ_EVERY_S:
            with self._lock:
                self._read_at_s = now_s
                found = secrets_of(os.environ)
                if found != self._of_environment:
                    self._of_environment = found
                    self._rebuild()
        return self._redactor

    def _rebuild(self) -> None:
        self._redactor = Redactor({}, [*self._of_environment, *self._registered])


_process = _ProcessSecrets()


def register_secret(value: str) -> None:
    """Makes every way out of this process remove the value, from now on. Registering it again costs next to nothing."""
    _process.register(parts_of_value(value))


def register_address(address: str) -> None:
    """Registers the password of an address, and the values of its query that may be keys."""
    secrets = [text for name, text in _query_of(address) if name not in _PLAIN_PARAMETERS]
    _process.register([*parts_of_address(address), *secrets])


def register_settings(settings: Mapping[str, Any]) -> None:
    """Registers the texts under secret names, at any depth. A text `$NAME` names a variable and is no secret."""
    _process.register(list(_secret_texts("", settings)))


def _query_of(address: str) -> list[tuple[str, str]]:
    """Returns the lower-case names and the values of the query."""
    return [(name.lower(), value) for name, value in urllib.parse.parse_qsl(address.partition("?")[2])]


def _secret_texts(name: str, value: Any, depth: int = 0) -> Iterable[str]:
    if isinstance(value, str):
        if not value.startswith("$") and is_secret_setting(name, value):
            yield from parts_of_value(value)
        elif "://" in value:
            yield from parts_of_address(value)
            yield from (text for name, text in _query_of(value) if is_secret_variable(name) or name in _KEY_PARAMETERS)
    elif isinstance(value, Mapping) and depth < 20:
        for key, item in value.items():
            yield from _secret_texts(str(key), item, depth + 1)
    elif isinstance(value, list | tuple) and depth < 20:
        for item in value:
            yield from _secret_texts(name, item, depth + 1)


# -- the ways out --


def redact(text: str) -> str:
    """Returns a message without secrets and without what looks like one."""
    return _process.redactor().redact(text)


def hide_secrets(text: str) -> str:
    """Returns the text of a judge or user without the secret values that this process knows."""
    return _process.redactor().values.redact(text)


def hide_in_record(record: Any) -> Any:
    """Returns plain data without secret values in its texts; numbers stay as they are."""
    return _process.redactor().values.redact_record(record)


def is_free_of_secrets(text: str) -> bool:
    """Whether `hide_secrets` would leave the text alone. One call checks many encoded records quickly."""
    return not _process.redactor().values.are_in(text)


def hide_in_reward(reward: Reward) -> Reward:
    """Returns the verdict without secret values in its texts and names. Its numbers are never changed."""
    values = _process.redactor().values
    changed: dict[str, Any] = {}
    for name in ("error", "query", "explanation", "traceback"):
        text = getattr(reward, name)
        if text is not None and (shown := values.redact(text)) != text:
            changed[name] = shown
    for name in ("extras", "components"):
        record = getattr(reward, name)
        if record and values.are_in_record(record):
            changed[name] = values.redact_record(record)
    return replace(reward, **changed) if changed else reward


def hide_in_result(result: Any) -> Any:
    """Returns what a reward returned without secret values, in the shape that the reward chose."""
    if isinstance(result, Reward):
        return hide_in_reward(result)
    if type(result) in (list, tuple):
        return type(result)(hide_in_result(one) for one in result)
    if isinstance(result, str | Mapping) and _process.redactor().values.are_in_record(result):
        return hide_in_record(result)
    return result


def address_to_show(address: str) -> str:
    """Returns an address without its user name and password, and with the values of its query hidden."""
    place, mark, query = address.partition("?")
    hidden = "&".join(f"{pair.partition('=')[0]}={REDACTED}" if _hides(pair) else pair for pair in query.split("&"))
    return redact(place + mark + hidden)


def _hides(pair: str) -> bool:
    name, _, value = pair.partition("=")
    return bool(value) and name.lower() not in _PLAIN_PARAMETERS


# -- log records and errors --


def redact_log_records(package: str) -> None:
    """Makes the loggers of a package redact each record that they make, so that every handler gets a clean one.

    A filter of the package's logger would not do: Python does not apply it to the loggers below it.
    """
    make = logging.getLogRecordFactory()

    def make_redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.name.partition(".")[0] == package:
            _hide_in_log_record(record)
        return record

    logging.setLogRecordFactory(make_redacted)


def _hide_in_log_record(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except Exception:  # arguments that do not fit: the handler reports it
        return
    if (shown := hide_secrets(message)) != message:
        record.msg, record.args = shown, ()
    if record.exc_info and record.exc_info[1] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if not is_free_of_secrets(text):
            record.exc_text = hide_secrets(text)


# Every module that registers or meets a secret imports this one first.
redact_log_records("rewardflow")
RewardflowError.without_secrets = staticmethod(hide_secrets)
