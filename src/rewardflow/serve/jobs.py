"""Who asks: finds the job of a request by its token.

Always true: where the server has tokens, a request without a known one is refused, and a job can ask only under its
own name. Tokens are compared by their digests, and are in no log, error or statistic.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import register_secret
from rewardflow.serve.settings import ServeSettings

_MIN_TOKEN = 16
_MAX_RUN = 200


class Unauthorized(Exception):
    """The request has no token, or an unknown one."""


class Forbidden(Exception):
    """The token is known, and its job may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedJob:
    """What a request may do: ask for this run, with this share of the slots and this many rollouts waiting."""

    run: str
    share: float | None = None  # None: the run's clients choose it
    max_waiting: int
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
            self._by_digest[digest] = ServedJob(run=name, share=job.share, max_waiting=job.max_waiting)
        self._by_name = {job.run: job for job in self._by_digest.values()}

    @property
    def needs_token(self) -> bool:
        return bool(self._by_digest) or self._admin is not None

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
        known = self._by_name.get(name)
        share, max_waiting = (None, self._max_waiting) if known is None else (known.share, known.max_waiting)
        return ServedJob(run=name, share=share, max_waiting=max_waiting, sees_all=True)


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
    return hashlib.blake2b(token.encode(), digest_size=32).digest()
