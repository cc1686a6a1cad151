"""Which verl is supported."""

from __future__ import annotations

import pytest

from rewardflow.adapters.verl.versions import check_version
from rewardflow.errors import InvalidInput


@pytest.mark.parametrize("version", ["0.9.1", "0.9.1+cu128"])
def test_a_release_that_was_tested_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.8.3", "0.9.0", "0.9.2", "0.10.0", "1.0", "0.9.1rc1", "main"])
def test_another_release_is_named_with_the_setting_that_tries_it(version: str) -> None:
    with pytest.raises(InvalidInput, match=rf"got verl {version}: .* with rewardflow\.allow_untested_verl=true"):
        check_version(version)
    check_version(version, allow_untested=True)
