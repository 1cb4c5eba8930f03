"""``clove watch``: the report of runs, served on this machine while they are going.

The server only answers GET of two things, the page and the new lines of the
metrics, and only on the loopback address, with a bounded number of threads. It
writes nothing. A page of another site that made a browser ask here under its
own name (DNS rebinding) is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.showing import WatchConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.report.bounded_server import BoundedServer
from clove_ssl.report.page import encoded, render_report
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import damaged_lines, read_metrics
from clove_ssl.runs.state import read_state

HOST = "127.0.0.1"
_STEP = re.compile(r"[0-9]{1,18}")
_MOST_ROWS = 100  # lines of metrics in one answer; the page itself has them all


def watch(config: WatchConfig) -> None:
    """Serve the report until Ctrl-C."""
    server = open_server(config)
    console = Console()
    for damage in filter(None, map(damaged_lines, map(directory.find, config.runs))):
        console.warn(damage)
    console.say(f"http://{HOST}:{server.server_port}/  (read-only; Ctrl-C stops it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.say("Stopped watching; the runs go on.")
    finally:
        server.server_close()


def open_server(config: WatchConfig) -> BoundedServer:
    """The server, listening but not yet answering."""
    if not config.runs:
        raise UserError("clove watch needs a run. Name its folder: clove watch runs/a")
    runs = [directory.find(path) for path in config.runs]
    render_report(runs, live=True)  # what is wrong with a run is said here, not in the browser

    class Handler(ReportHandler):
        watched = runs

    try:
        return BoundedServer((HOST, config.port), Handler)
    except OSError as error:
        raise UserError(
            f"Port {config.port} cannot be used: {error.strerror}. Try --port {config.port + 1}, "
            "or --port 0 for any free one."
        ) from None


class ReportHandler(BaseHTTPRequestHandler):
    """Answers for some runs."""

    watched: Sequence[RunDirectory] = ()
    server_version = "clove"
    sys_version = ""

    def do_GET(self) -> None:
        """The page, new metrics, or nothing."""
        if isinstance(self.server, BoundedServer):
            self.server.has_asked(self.connection)
        address = _address(self.path)
        if not self._is_asked_by_name():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"Ask for 127.0.0.1 or localhost.\n")
        elif address.path == "/":
            self._answer_or_explain("text/html", lambda: encoded(self._page()))
        elif address.path == "/metrics.json":
            after = parse_qs(address.query).get("after", [""])[0]
            self._answer_or_explain(
                "application/json", lambda: json.dumps(news(self.watched, after)).encode()
            )
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is only / here.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line on the terminal."""

    def _page(self) -> str:
        return render_report(self.watched, live=True)

    def _is_asked_by_name(self) -> bool:
        host = self.headers.get("Host", "").rpartition(":")
        return (host[0] or host[2]) in {HOST, "localhost"}

    def _answer_or_explain(self, kind: str, make: Any) -> None:
        try:
            body = make()
        except (UserError, OSError) as error:
            text = encoded(f"{error}\n")
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", text)
            return
        self._answer(HTTPStatus.OK, kind, body)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)


def _address(path: str) -> SplitResult:
    try:
        return urlsplit(path)
    except ValueError:  # an address that is none
        return urlsplit("/nowhere")


def news(runs: Sequence[RunDirectory], after: str) -> dict[str, Any]:
    """How far runs are, and their lines of metrics after given steps such as ``120,80``."""
    known = [int(step) if _STEP.fullmatch(step) else 0 for step in after.split(",")]
    known += [0] * (len(runs) - len(known))
    return {"runs": [_news_of(run, step) for run, step in zip(runs, known, strict=False)]}


def _news_of(run: RunDirectory, after: int) -> dict[str, Any]:
    metrics = read_metrics(run)
    fresh = [row for row in metrics if row["step"] > after]
    return {
        "name": run.path.resolve().name,
        "status": _status(run, metrics),
        "step": int(metrics[-1]["step"]) if metrics else 0,
        "rows": [_plain(row) for row in fresh[-_MOST_ROWS:]],
    }


def _status(run: RunDirectory, metrics: Sequence[Mapping[str, float]]) -> str:
    config = directory.read_config(run)
    if isinstance(config, FinetuneConfig):
        return "finished" if run.scores.is_file() or run.summary.is_file() else "unfinished"
    return read_state(run, config, metrics).status


def _plain(row: Mapping[str, float]) -> dict[str, float | None]:
    """A line as JSON knows it, which has no word for what is not a number."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}
