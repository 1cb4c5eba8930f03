"""Threads that wait for each other do not take the cores from other programs."""

from __future__ import annotations

import pytest

from clove_ssl.command_line.importing import let_threads_rest


def test_threads_sleep_soon_by_default() -> None:
    environment = {"HOME": "/"}
    let_threads_rest(environment)
    assert environment == {"HOME": "/", "GOMP_SPINCOUNT": "10000"}


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_a_user_has_chosen_stays(name: str) -> None:
    environment = {name: "active"}
    let_threads_rest(environment)
    assert environment == {name: "active"}
