"""A hub on the loopback: enough of its interface for the real client to list and download a repository at a commit."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants as client
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GATED = "lab/gated"
_TREE = re.compile(r"/api/(?:models|datasets)/(\w+/[\w-]+)/tree/(\w+)")
_FILE = re.compile(r"/(?:datasets/)?(\w+/[\w-]+)/resolve/(\w+)/(.+)")


@contextmanager
def hub(root: Path, patch: pytest.MonkeyPatch, cache: Path) -> Iterator[list[str]]:
    """Serves the folders root/<owner>/<name>; the client of this process talks to it. Yields the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            match = _TREE.fullmatch(path) or _FILE.fullmatch(path)
            folder = root / match[1] if match else root / "nothing"
            if match and match[1] == GATED:
                return self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
            if match is None or not folder.is_dir():
                return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            if match[2] != COMMIT:
                return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            if match.re is _TREE:
                files = sorted(file for file in folder.rglob("*") if file.is_file())
                rows = [
                    {"type": "file", "path": str(f.relative_to(folder)), "size": f.stat().st_size, "oid": etag(f)}
                    for f in files
                ]
                return self._answer(200, json.dumps(rows).encode(), {})
            file = folder / match[3]
            return self._answer(200, file.read_bytes(), {"ETag": f'"{etag(file)}"', "X-Repo-Commit": COMMIT})

        def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    point_client_at(f"http://127.0.0.1:{server.server_port}", patch, cache)
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


def point_client_at(endpoint: str, patch: pytest.MonkeyPatch, cache: Path) -> None:
    """The client of this process asks there, and keeps what it gets in `cache`."""
    patch.setattr(client, "ENDPOINT", endpoint)
    patch.setattr(client, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(client, "HF_HUB_CACHE", str(cache))


def etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
