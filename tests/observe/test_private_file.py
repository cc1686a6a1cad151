"""Files are private, created exclusively, and replaced as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardflow.observe import private_file
from rewardflow.observe.private_file import creating, draft_of, replacing, write_private


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_a_new_file_is_private_without_a_umask_too(tmp_path: Path) -> None:
    write_private(tmp_path / "a", b"x")
    with creating(tmp_path / "b") as file:
        file.write(b"y")
    assert {path.name: mode_of(path) for path in tmp_path.iterdir()} == {"a": 0o600, "b": 0o600}


@pytest.mark.usefixtures("no_umask")
def test_a_draft_is_private_while_it_is_written(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as file:
        (draft,) = tmp_path.iterdir()
        assert mode_of(draft) == 0o600
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_at_the_name_of_a_draft_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    monkeypatch.setattr(private_file.secrets, "token_hex", lambda _: "guessed")
    draft_of(tmp_path / "a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "a", b"x")
    assert victim.read_bytes() == b"mine"


def test_a_link_at_the_name_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, link = tmp_path / "victim", tmp_path / "a"
    victim.write_bytes(b"mine")
    link.symlink_to(victim)
    write_private(link, b"x")
    assert victim.read_bytes() == b"mine"
    assert not link.is_symlink()
    assert link.read_bytes() == b"x"
    with pytest.raises(FileExistsError), creating(link):
        pass


def test_a_file_that_replaces_one_that_all_may_read_is_private(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_private(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="only a regular file"):
            write_private(path, b"x")
