"""The settings of `rewardflow serve`: where it listens, whom it serves, and what it forwards.

Always true: a record that exists is valid. Tokens and keys are named by their environment variables and are in no file.
Whoever listens beyond this machine asks for tokens.

    serve:
      port: 8078
      jobs:
        math: {token_env: MATH_TOKEN, share: 2, max_cost_usd: 20}
        code: {token_env: CODE_TOKEN}
      proxy: {base_url: "https://api.openai.com/v1", api_key_env: OPENAI_API_KEY}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.errors import InvalidInput
from rewardflow.observe.own_address import is_loopback
from rewardflow.reward.settings import MAX_SHARE, MIN_SHARE
from rewardflow.serve.plain_records import from_plain
from rewardflow.types import EMPTY

PORT: Final = 8078
HOST: Final = "127.0.0.1"


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
