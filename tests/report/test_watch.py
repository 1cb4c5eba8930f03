"""clove watch: a page on this machine that can only be read."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.showing import WatchConfig
from clove_ssl.report import bounded_server
from clove_ssl.report import watch as watching
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = directory.create(tmp_path / "run")
    files.save(PretrainConfig(out=run.path), run.config)
    rows = [{"step": step, "loss": 100.0 - step, "epoch": step / 10} for step in (1, 2, 3)]
    rows[1]["loss"] = math.nan
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture
def server(run: RunDirectory) -> Iterator[ThreadingHTTPServer]:
    server = watching.open_server(WatchConfig(runs=(run.path,), port=0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    server: ThreadingHTTPServer, path: str, *, verb: str = "GET", host: str = ""
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(verb, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_is_the_report_and_asks_for_news(server: ThreadingHTTPServer) -> None:
    answer, body = ask(server, "/")
    assert answer.status == 200
    assert answer.getheader("Cache-Control") == "no-store"
    page = body.decode()
    assert "metrics.json?after=" in page
    assert "connect-src 'self'" in page
    assert "interrupted at step 3" in page


def test_news_are_the_lines_after_a_step(server: ThreadingHTTPServer) -> None:
    _, body = ask(server, "/metrics.json?after=1")
    (news,) = json.loads(body)["runs"]
    assert (news["name"], news["status"], news["step"]) == ("run", "interrupted", 3)
    assert [row["step"] for row in news["rows"]] == [2, 3]
    assert news["rows"][0]["loss"] is None
    _, body = ask(server, "/metrics.json?after=3")
    assert json.loads(body)["runs"][0]["rows"] == []


@pytest.mark.parametrize("after", ["", "x", "-5", "1,2,3,4"])
def test_odd_questions_have_an_answer(server: ThreadingHTTPServer, after: str) -> None:
    answer, body = ask(server, f"/metrics.json?after={after}")
    assert answer.status == 200
    assert len(json.loads(body)["runs"]) == 1


@pytest.mark.parametrize("path", ["/config.yaml", "/../run/config.yaml", "//etc/passwd", "/x/.."])
def test_there_is_nothing_else_to_get(server: ThreadingHTTPServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_answered(server: ThreadingHTTPServer, verb: str) -> None:
    assert ask(server, "/", verb=verb)[0].status == 501


def test_other_names_for_this_machine_are_refused(server: ThreadingHTTPServer) -> None:
    assert ask(server, "/", host="evil.example")[0].status == 403
    assert ask(server, "/", host=f"localhost:{server.server_port}")[0].status == 200
    assert ask(server, "/", host="localhost")[0].status == 200


def test_only_this_machine_can_ask(server: ThreadingHTTPServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_watching_writes_nothing(run: RunDirectory, server: ThreadingHTTPServer) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in run.path.rglob("*"))
    ask(server, "/")
    ask(server, "/metrics.json")
    assert sorted((path, path.stat().st_mtime_ns) for path in run.path.rglob("*")) == before


def test_a_run_that_breaks_meanwhile_is_explained(
    run: RunDirectory, server: ThreadingHTTPServer
) -> None:
    run.probes.write_text("[{")
    answer, body = ask(server, "/")
    assert answer.status == 503
    assert b"probes.json is damaged" in body


def test_a_port_in_use_is_named(
    run: RunDirectory, server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.server_port
    assert cli.main(["watch", str(run.path), "--port", str(port)]) == 2
    assert f"Port {port} cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["RUN", "--port", "99999"]])
def test_mistakes_are_explained(
    run: RunDirectory, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["watch", *(each.replace("RUN", str(run.path)) for each in arguments)]) == 2
    assert capsys.readouterr().err.startswith("clove: ")


def test_a_thousand_silent_connections_do_not_stop_the_page(server: ThreadingHTTPServer) -> None:
    before, silent = threading.active_count(), []
    try:
        for number in range(1000):
            connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
            connection.send(b"GET / HTTP/1.1\r\nHo"[: number % 20])
            silent.append(connection)
            if number % 250 == 249:
                assert ask(server, "/metrics.json?after=1")[0].status == 200
        assert threading.active_count() - before <= 2 * bounded_server.MOST_CONNECTIONS
        assert ask(server, "/")[0].status == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_connection_that_says_nothing_is_closed(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_server, "PATIENCE", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        assert connection.recv(1) == b""


def test_odd_addresses_get_an_answer(server: ThreadingHTTPServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for path in ("x://[/", "/metrics.json?after=%C2%B2", f"/metrics.json?after={'9' * 5000}"):
        assert ask(server, path)[0].status in (200, 404)
