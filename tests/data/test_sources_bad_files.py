"""What is said about files that cannot be read can be typed."""

from __future__ import annotations

import pytest

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.sources import BadFile, BadFiles
from clove_ssl.errors import UserError


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (20, "--data.max-bad 0.75"),
        (35, "--data.max-bad 1$"),
        (40, "Not one can be read: give --data other images"),
    ],
)
def test_no_share_above_one_is_suggested(bad: int, words: str) -> None:
    files = BadFiles(DataConfig(), images=40)
    for number in range(bad):
        files.add(BadFile(f"{number}.jpg", "an empty file"))
    with pytest.raises(UserError, match=words):
        files.check()
