"""Decides by its name whether a variable of the environment, a setting or a query parameter holds a secret.

Always true: the decision looks at the parts of a name (`OPENAI_API_KEY_PROD` has the parts OPENAI, API, KEY and PROD),
never at a list of known names. A name that says where a secret is kept, such as `HF_TOKEN_PATH`, holds none.
"""

from __future__ import annotations

import re

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # also of camelCase; digits only separate
# A part that ends in one of these: PGPASSWORD and MYAPIKEY have no separator.
_LONG_WORD = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|SIGNATURE|BEARER|AUTHORIZATION|WEBHOOK)S?$"
)
_SHORT_WORDS = frozenset({"PASS", "PAT", "PATS", "PWD", "AUTH", "CRED", "CREDS", "JWT", "PSK", "DSN", "OTP"})
_CONNECTION = ("CONNECTION", "STRING")
# Names whose last part is one of these are about a secret but do not hold it.
_ABOUT = frozenset(
    {
        *("FILE", "PATH", "DIR", "SOCK", "SOCKET", "HEADER", "NAME", "ENV", "MODE", "TYPE", "URL", "HOST", "PORT"),
        *("ENABLED", "DISABLED", "TIMEOUT", "TTL", "LIMIT", "LENGTH", "SIZE", "COUNT", "EXPIRY", "EXPIRES", "FORMAT"),
    }
)
_COUNTED = frozenset({"MAX", "MIN", "NUM"})  # MAX_TOKENS
_FOLDERS = frozenset({("PWD",), ("OLDPWD",)})

# Of settings: "answer_key" and "stop_token" name columns and tokens far more often than secrets.
_SURE_WORD = re.compile(r"(?:SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|BEARER|AUTHORIZATION|WEBHOOK)S?$")
_SURE_PAIR = re.compile(
    r"\b(?:API|ACCESS|SECRET|PRIVATE|SUBSCRIPTION|ACCOUNT|MASTER|SIGNING) KEYS?\b"
    r"|\b(?:API|ACCESS|AUTH|BEARER|REFRESH|ID|SESSION|HF|GITHUB) TOKENS?\b"
)
_MIN_UNSURE_CHARS = 12


def is_secret_variable(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    parts = _parts(name)
    if not parts or parts in _FOLDERS:
        return False
    if any(part.startswith("WEBHOOK") for part in parts) or " ".join(_CONNECTION) in " ".join(parts):
        return True
    if parts[-1] in _ABOUT or parts[0] in _COUNTED:
        return False
    return any(part in _SHORT_WORDS or _LONG_WORD.search(part) for part in parts)


def is_secret_setting(name: str, value: str) -> bool:
    """Whether a setting holds a secret. If its name leaves doubt, its value must look like a key."""
    if not is_secret_variable(name):
        return False
    parts = _parts(name)
    if any(_SURE_WORD.search(part) for part in parts) or _SURE_PAIR.search(" ".join(parts)):
        return True
    has_both = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    return has_both and len(value) >= _MIN_UNSURE_CHARS and not any(char.isspace() or char in "<>" for char in value)


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.upper() for part in _PART.findall(name))
