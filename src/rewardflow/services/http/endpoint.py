"""Checks and reads the settings that all HTTP services share: addresses, keys, headers, and the address of a call.

Always true: settings name the environment variable of a key; the key is read for each request, and only the redactor
keeps it. No message shows a text that was given instead of such a name or as a header's value, because the text may be
the key itself.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import REDACTED, address_to_show, redact, register_address, register_secret
from rewardflow.reward.code.current_call import current_call
from rewardflow.services.http.proxies import is_this_machine

UNPRICED = "no price is known: set its own call_cost_usd (0 for a server of yours), or call_cost_usd of the agent"

logger = logging.getLogger(__name__)

_warned_of: set[str] = set()  # hosts
_KEY = "Authorization"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Headers that identify the sender and never hold a secret.
_PLAIN_HEADERS = frozenset(
    {
        *("accept", "accept-language", "anthropic-version", "http-referer", "openai-beta", "openai-organization"),
        *("content-type", "openai-project", "referer", "user-agent", "x-title"),
    }
)


def check_cost(name: str, cost_usd: float | None) -> None:
    is_number = isinstance(cost_usd, int | float) and not isinstance(cost_usd, bool)
    if cost_usd is not None and not (is_number and 0 <= cost_usd < math.inf):
        raise InvalidInput(f"{name} must be a number of at least 0, got {cost_usd!r}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be true or false, got {value!r}")


# -- addresses --


def check_addresses(name: str, addresses: Sequence[str]) -> None:
    for address in addresses:
        if not _is_address(address):
            raise InvalidInput(f"{name} must be http or https addresses, got {address_to_show(str(address))!r}")
        register_address(address)
    if len(set(addresses)) != len(addresses):
        raise InvalidInput(f"{name} must differ from each other, got {', '.join(map(address_to_show, addresses))}")


def read_addresses(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """Reads one address or several, and removes a slash at the end."""
    addresses = tuple(one.rstrip("/") for one in ((given,) if isinstance(given, str) else given))
    if not addresses:
        raise InvalidInput(f"{name} must be one or more http or https addresses, got none")
    check_addresses(name, addresses)
    return addresses


def _is_address(address: object) -> bool:
    try:
        parts = urllib.parse.urlsplit(address) if isinstance(address, str) else None
    except ValueError:  # for example an IPv6 address without its closing bracket
        return False
    return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)


def endpoint_of_call(endpoints: Sequence[str]) -> str:
    """Returns the agent's choice; the first endpoint outside a call, or if the choice is not among these endpoints."""
    call = current_call()
    chosen = None if call is None else call.endpoint
    return chosen if chosen is not None and chosen in endpoints else endpoints[0]


# -- keys --


def check_variable(name: str, variable: object) -> None:
    if variable is not None and not (isinstance(variable, str) and _VARIABLE.fullmatch(variable)):
        raise InvalidInput(
            f"{name} must be the name of an environment variable (letters, digits and _); what was given is not, "
            "and is not shown, because it may be the key itself"
        )
    if isinstance(variable, str):
        _register_variable(variable)


def check_headers(headers: Mapping[str, str]) -> None:
    """Requires values of the form `$NAME`, read from the environment, except for headers that never hold a secret."""
    for name, value in headers.items():
        if isinstance(value, str) and value.startswith("$"):
            check_variable(f"the value of the header {name}, after $,", value[1:])
        elif not isinstance(value, str) or name.lower() not in _PLAIN_HEADERS or redact(value) != value:
            raise InvalidInput(
                f"the header {name} must be given as $NAME, by the variable of the environment that holds its value; "
                "what was given is not shown, because it may be a key"
            )


def check_one_key(
    name: str, addresses: Sequence[str], headers: Mapping[str, str], api_key_env: str | None, key_header: str = _KEY
) -> None:
    """Refuses addresses with a password beside a key: both would be the header `Authorization` of a request."""
    sent = {one.lower() for one in headers} | ({key_header.lower()} if api_key_env is not None else set())
    if _KEY.lower() in sent and any("@" in urllib.parse.urlsplit(address).netloc for address in addresses):
        raise InvalidInput(f"{name} must have no user and password when a key is sent as the header {_KEY}; give one")


def headers_to_send(headers: Mapping[str, str], api_key_env: str | None, key_header: str = _KEY) -> dict[str, str]:
    """Returns the headers with values from the current environment. Raises `InvalidInput` for a missing variable."""
    sent = {name: _from_environment(value[1:]) if value[:1] == "$" else value for name, value in headers.items()}
    if api_key_env is not None:
        key = _from_environment(api_key_env)
        sent[key_header] = f"Bearer {key}" if key_header.lower() == "authorization" else key
    return sent


def warn_of_readable_key(url: str, headers: Mapping[str, str]) -> None:
    """Warns once for each host to which a key goes over plain http:// and which is another machine."""
    host = _host_without_encryption(url)
    if host is None or host in _warned_of:
        return
    if _holds_key(url) or any(name.lower() not in _PLAIN_HEADERS for name in headers):
        _warned_of.add(host)
        logger.warning("a key goes to %s over plain http://, where others on the way can read it: use https://", host)


@functools.lru_cache(maxsize=256)
def _holds_key(url: str) -> bool:
    return REDACTED in address_to_show(url)


@functools.lru_cache(maxsize=256)
def _host_without_encryption(url: str) -> str | None:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    return host if parts.scheme == "http" and not is_this_machine(host) else None


def _register_variable(variable: str) -> None:
    """Makes the redactor know the value from now on: this runs in every process that builds the service."""
    if value := os.environ.get(variable, "").strip():
        register_secret(value)


def _from_environment(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    shown = redact(variable)  # someone may have given the key itself instead of a name
    if not value:
        raise InvalidInput(f"the environment variable {shown} must hold the service's key; it is not set or empty")
    if not value.isascii() or not value.isprintable():
        raise InvalidInput(f"the environment variable {shown} must hold plain characters, as a header allows")
    register_secret(value)
    return value
