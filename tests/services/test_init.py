"""The package of services is a table of contents that costs nothing to open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rewardflow import services


def test_importing_the_package_loads_no_service_and_no_http_client() -> None:
    code = "import sys, rewardflow.services as s; s.LLMJudge; sys.stdout.write(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "rewardflow.services.judges.llm_judge" in loaded
    assert not {"aiohttp", "yaml", "bm25s", "pyarrow", "rewardflow.services.retrieval.retrieval_judge"}.intersection(
        loaded
    )


def test_names_are_found_when_asked_for_and_unknown_ones_are_refused() -> None:
    assert services.LLMJudge.__name__ == "LLMJudge"
    assert services.rules.__name__.endswith("services.rules")
    assert set(services.__all__) <= set(dir(services))
    with pytest.raises(AttributeError, match="LLMJugde"):
        services.LLMJugde  # noqa: B018
