"""The settings of `rewardflow serve`: where it listens, what it forwards, and the jobs that it serves.

Always true: a record that exists is valid. Tokens and keys are named by their environment variables and are in no file.
Whoever listens beyond this machine asks for tokens. Where the server has tokens, a request without a known one is
refused, and a job can ask only under its own name. Tokens are compared by their digests, and are in no log, error or
statistic.

    serve:
      port: 8078
      jobs:
        math: {token_env: MATH_TOKEN, share: 2, max_cost_usd: 20}
        code: {token_env: CODE_TOKEN}
      proxy: {base_url: "https://api.openai.com/v1", api_key_env: OPENAI_API_KEY}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.observe.own_address import is_loopback
from rewardflow.observe.redact import register_secret
from rewardflow.reward.settings import MAX_SHARE, MIN_SHARE
from rewardflow.serve.http_json import from_plain
from rewardflow.types import EMPTY

PORT: Final = 8078
HOST: Final = "127.0.0.1"
_MIN_TOKEN: Final = 16
_MAX_RUN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """A job: one training run that shares the server with others, walled off from them by its token."""

    token_env: str
    share: float = 1.0
    max_cost_usd: float | None = None
    max_waiting: int = 100_000  # rollouts without a verdict

    def __post_init__(self) -> None:
        if not MIN_SHARE <= self.share <= MAX_SHARE:
            raise InvalidInput(f"share of a job must be from {MIN_SHARE:g} to {MAX_SHARE:g}, got {self.share!r}")
        if self.max_cost_usd is not None and not 0 < self.max_cost_usd < math.inf:
            raise InvalidInput(f"max_cost_usd of a job must be a positive number, got {self.max_cost_usd!r}")
        if self.max_waiting < 1:
            raise InvalidInput(f"max_waiting of a job must be at least 1, got {self.max_waiting}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The service behind `/v1/chat/completions`, and how its calls are governed (`limits`, as for any agent)."""

    base_url: str | Sequence[str]
    api_key_env: str | None = None
    limits: Mapping[str, Any] = EMPTY
    input_usd_per_million: float | None = None
    output_usd_per_million: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    host: str = HOST
    port: int = PORT
    token_env: str | None = None  # the variable of a token that may do everything, under any run's name
    jobs: Mapping[str, JobSettings] = EMPTY
    max_body_mb: float = 64.0
    max_waiting: int = 100_000  # of a run that is no job
    tls_certificate: str | None = None
    tls_key: str | None = None
    proxy: ProxySettings | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InvalidInput(f"port must be from 0 to 65535, got {self.port}")
        if not 0 < self.max_body_mb <= 1024:
            raise InvalidInput(f"max_body_mb must be above 0 and at most 1024, got {self.max_body_mb!r}")
        if self.max_waiting < 1:
            raise InvalidInput(f"max_waiting must be at least 1, got {self.max_waiting}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInput("tls_certificate and tls_key must be set together")
        if not (is_loopback(self.host) or self.jobs or self.token_env):
            raise InvalidInput(
                f"a server that listens beyond this machine must ask for a token, got host {self.host!r} and neither "
                "serve.jobs nor serve.token_env"
            )

    @classmethod
    def of(cls, contents: Any, **given: Any) -> ServeSettings:
        """Makes settings from the section `serve` of a reward's file; what the command line gave goes first."""
        if not isinstance(contents, Mapping):
            raise InvalidInput(f"serve must be a mapping, got {contents!r:.100}")
        return from_plain(cls, {**contents, **given}, "serve")


# -- who asks ----------------------------------------------------------------------------------------------------------


class Unauthorized(Exception):
    """The request has no token, or an unknown one."""


class Forbidden(Exception):
    """The token is known, and its job may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedJob:
    """What a request may do: ask for this run, with this share of the slots."""

    run: str
    share: float | None = None  # None: the run's clients choose it
    sees_all: bool = False  # the other jobs' figures, too


class Jobs:
    """The tokens that the server knows. Without any, every request may name its run."""

    def __init__(self, settings: ServeSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._max_waiting = settings.max_waiting
        self._by_digest: dict[bytes, ServedJob] = {}
        self._admin: bytes | None = None
        if settings.token_env is not None:
            self._admin = _digest(_token(settings.token_env, environ))
        for name, job in settings.jobs.items():
            digest = _digest(_token(job.token_env, environ))
            if digest in self._by_digest or digest == self._admin:
                raise InvalidInput(f"every job must have a token of its own, got that of {name!r} twice")
            self._by_digest[digest] = ServedJob(run=name, share=job.share)
        self._by_name = settings.jobs

    @property
    def needs_token(self) -> bool:
        return bool(self._by_digest) or self._admin is not None

    def max_waiting_of(self, run: str) -> int:
        """Returns how many rollouts a run may have waiting."""
        known = self._by_name.get(run)
        return self._max_waiting if known is None else known.max_waiting

    def of(self, authorization: str | None, run: str | None) -> ServedJob:
        """Returns the job of a request. `run` is the name that the request gives itself, if any."""
        if not self.needs_token:
            return self._named(run)
        token = _token_in(authorization)
        digest = None if token is None else _digest(token)
        if digest is None:
            raise Unauthorized("this server asks for a token: Authorization: Bearer ..., or user:TOKEN@ in the address")
        if digest == self._admin:
            return self._named(run)
        job = self._by_digest.get(digest)
        if job is None:
            raise Unauthorized("the token is not known here")
        if run is not None and run != job.run:
            raise Forbidden(f"the token is that of job {job.run!r}, got run {run!r:.100}")
        return job

    def _named(self, run: str | None) -> ServedJob:
        """Returns the job of a request that may do everything, under the name it gives."""
        name = "default" if run is None else run
        if not 0 < len(name) <= _MAX_RUN:
            raise InvalidInput(f"run must be a name of 1 to {_MAX_RUN} characters, got {len(name)}")
        if not _is_unicode(name):
            raise InvalidInput(f"run must be text in UTF-8, got {name!a:.100}")
        known = self._by_name.get(name)
        return ServedJob(run=name, share=None if known is None else known.share, sees_all=True)


def _token(name: str, environ: Mapping[str, str]) -> str:
    token = environ.get(name, "")
    if len(token) < _MIN_TOKEN:
        raise InvalidInput(
            f"the environment variable {name} must hold a token of at least {_MIN_TOKEN} characters, got {len(token)}"
        )
    register_secret(token)
    return token


def _token_in(authorization: str | None) -> str | None:
    """Reads `Bearer TOKEN`, or the password of `Basic`, which clients send for an address with user:token@host."""
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _is_unicode(text: str) -> bool:
    """Whether a header's text was UTF-8: other bytes arrive as halves of characters, which no answer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
