"""A server with a certificate: the client checks it, and speaks to nobody whose certificate it does not trust."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving_process import ServingProcess

ASK = """
import asyncio, sys
import rewardflow as rf
from rewardflow.serve import connect

async def main():
    async with connect(sys.argv[1], run="a", give_up_s=0.1) as agent:
        print((await agent.submit([rf.Rollout(group_id="g", response="four")]).all())[0].rewards[0].value)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody else has signed, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate, and is not here")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


def test_a_client_that_trusts_the_certificate_is_answered_over_tls_and_another_one_refuses(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    options = ("--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1]))
    with ServingProcess(tmp_path, options=options) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = asked(server.url, SSL_CERT_FILE=str(certificate[0]))
        assert trusting.stdout == "4.0\n", trusting.stderr
        strange = asked(server.url)
        assert strange.returncode != 0
        assert "certificate" in strange.stderr.lower()
        plain = asked(server.url.replace("https:", "http:"))
        assert plain.returncode != 0
        assert server.calls() == ["four"]


def asked(url: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ASK, url]
    return subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **env})
