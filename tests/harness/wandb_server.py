"""A W&B server on the loopback, just large enough for the real client to upload runs to and to resume them."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer(ThreadingHTTPServer):
    """`runs` maps a run's id to what UpsertBucket said of it; `history` to its rows, by place."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, dict[int, dict[str, Any]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, run: str) -> list[dict[str, Any]]:
        return [row for _, row in sorted(self.history.get(run, {}).items())]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the console."""

    def do_GET(self) -> None:
        self._reply({})

    def do_PUT(self) -> None:
        self._body()
        self._reply({})

    def do_POST(self) -> None:
        body = json.loads(self._body())
        if self.path.endswith("/graphql"):
            answer = getattr(self, f"_{body.get('operationName')}", None)
            self._reply({"data": answer(body["variables"]) if answer else {}})
        else:
            run = self.path.split("/")[-2]
            stream = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for place, line in enumerate(stream["content"], stream["offset"]):
                self.server.history.setdefault(run, {})[place] = json.loads(line)
            self._reply({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _Viewer(self, variables: dict[str, Any]) -> Any:
        return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    def _RunResumeStatus(self, variables: dict[str, Any]) -> Any:
        name = variables["name"]
        rows = self.server.rows(name)
        bucket = {
            "id": name,
            "name": name,
            "summaryMetrics": "{}",
            "displayName": name,
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "notes": None,
            "wandbConfig": '{"t": 1}',
        }
        known = name in self.server.runs
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "me"}}
        return {"model": project | {"bucket": bucket if known else None}}

    def _UpsertBucket(self, variables: dict[str, Any]) -> Any:
        name = variables["name"]
        said = {key: value for key, value in variables.items() if value is not None}
        self.server.runs[name] = self.server.runs.get(name, {}) | said
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {"id": name, "name": name, "displayName": name, "config": "{}", "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _CreateRunFiles(self, variables: dict[str, Any]) -> Any:
        files = [{"name": name, "uploadUrl": f"{self.server.url}/put/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
