"""A web server for one person, which a thousand idle connections do not stop.

Every connection has a thread, as usual, but there is a largest number of them. When one more
comes, the oldest gives way, first of those that have not said yet what they want: a browser says
that at once. A connection that is silent, or does not take its answer, is closed after a while.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 64
PATIENCE = 10.0  # seconds for the next bytes of a request, and for all of an answer


class BoundedServer(ThreadingHTTPServer):
    """Answers with at most ``MOST_CONNECTIONS`` threads."""

    daemon_threads = True
    block_on_close = False  # threads end with their connections, or with the program
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # oldest first: whether it has asked
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room, then start a thread."""
        request.settimeout(PATIENCE)
        with self._lock:
            while len(self._open) >= MOST_CONNECTIONS:
                self._give_up(next((s for s, asked in self._open.items() if not asked), None))
            self._open[request] = False
        super().process_request(request, client_address)

    def has_asked(self, request: socket.socket) -> None:
        """A connection is being answered, so others give way before it."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who went away, or was too slow, is not worth a word."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _give_up(self, connection: socket.socket | None) -> None:
        """Close a connection, or the oldest; its thread sees the end of it and ends, too."""
        connection = connection or next(iter(self._open))
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
