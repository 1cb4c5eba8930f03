"""The pinned versions, and the same ones with the hashes of their files."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.compile(r"^([\w.-]+==[^\s;\\]+)", re.MULTILINE)


def test_hashes_are_those_of_the_pinned_versions_and_name_no_host() -> None:
    plain = (ROOT / "constraints.txt").read_text()
    hashed = (ROOT / "constraints-hashed.txt").read_text()
    assert sorted(PINNED.findall(plain)) == sorted(PINNED.findall(hashed)), "run: make hashes"
    assert "://" not in plain + hashed
    entries = re.split(r"\n(?=\S)", hashed.strip())
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
