"""A W&B server on the loopback, just large enough for the real client to upload runs, resume them and read them back."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WandbServer(ThreadingHTTPServer):
    """`runs` maps a run's id to what UpsertBucket said of it; `history` to its rows, by place; `asked`: what was called.

    `summary` maps it to its summary, `files` a path to what was put there, `artifacts` a name to those of that name,
    `views` a saved workspace's name to what was said of it. `refuses`: the status of every answer from now on, if any;
    `delay_s`: how long each takes.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        self.summary: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.artifacts: dict[str, list[dict[str, Any]]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.refuses: int | None = None
        self.delay_s = 0.0
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def rows(self, run: str) -> list[dict[str, Any]]:
        return [row for _, row in sorted(self.history.get(run, {}).items())]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


@contextmanager
def wandb_server(port: int = 0) -> Iterator[WandbServer]:
    server = WandbServer(port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
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
        self.server.files[self.path.removeprefix("/put/")] = self._body()
        self._reply({})

    def do_POST(self) -> None:
        body = json.loads(self._body())
        if self.server.refuses is not None:
            self._reply({"errors": [{"message": "not you"}]}, self.server.refuses)
        elif self.path.endswith("/graphql"):
            named = re.search(r"(?:query|mutation)\s+(\w+)", body.get("query", ""))
            name = body.get("operationName") or (named[1] if named else "")
            self.server.asked.append(name)
            answer = getattr(self, f"_{name}", None)
            self._reply({"data": answer(body.get("variables") or {}) if answer else {}})
        else:
            run = self.path.split("/")[-2]
            stream = body.get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for place, line in enumerate(stream["content"], stream["offset"]):
                self.server.history.setdefault(run, {})[place] = json.loads(line)
            for line in body.get("files", {}).get("wandb-summary.json", {"content": []})["content"]:
                self.server.summary[run] = json.loads(line)
            self._reply({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _reply(self, content: Any, status: int = 200) -> None:
        self.server.over.wait(self.server.delay_s)
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _Viewer(self, variables: dict[str, Any]) -> Any:
        return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}

    _GetDefaultEntity = _Viewer

    def _RunResumeStatus(self, variables: dict[str, Any]) -> Any:
        name = variables["name"]
        rows = self.server.rows(name)
        bucket = {
            "id": name,
            "name": name,
            "summaryMetrics": json.dumps(self.server.summary.get(name, {})),
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
        before = self.server.runs.get(name, {})
        config = json.loads(before.get("config", "{}")) | json.loads(said.get("config", "{}"))
        self.server.runs[name] = before | said | {"config": json.dumps(config)}
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {"id": name, "name": name, "displayName": name, "config": "{}", "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}

    def _CreateRunFiles(self, variables: dict[str, Any]) -> Any:
        files = [{"name": name, "uploadUrl": f"{self.server.url}/put/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def _ArtifactType(self, variables: dict[str, Any]) -> Any:
        return {"project": None}

    def _CreateArtifact(self, variables: dict[str, Any]) -> Any:
        said = variables["input"]
        name = said["artifactCollectionName"]
        versions = self.server.artifacts.setdefault(name, [])
        if not versions or versions[-1]["digest"] != said["digest"]:
            made = {"id": f"{name}:{len(versions)}", "type": said["artifactTypeName"], "digest": said["digest"]}
            versions.append(made | {"state": "PENDING"})
        latest = versions[-1]
        return {"createArtifact": {"artifact": latest | {"artifactSequence": {"id": name, "latestArtifact": None}}}}

    def _CreateArtifactManifest(self, variables: dict[str, Any]) -> Any:
        return {"createArtifactManifest": self._manifest(variables)}

    def _UpdateArtifactManifest(self, variables: dict[str, Any]) -> Any:
        return {"updateArtifactManifest": self._manifest(variables)}

    def _manifest(self, variables: dict[str, Any]) -> Any:
        where = {"uploadUrl": f"{self.server.url}/put/manifest", "uploadHeaders": []}
        return {"artifactManifest": {"id": "m", "file": {"id": "f"} | (where if variables["includeUpload"] else {})}}

    def _CreateArtifactFiles(self, variables: dict[str, Any]) -> Any:
        nodes = []
        for file in variables["input"]["artifactFiles"]:
            url = f"{self.server.url}/put/{file['artifactID']}/{file['name']}"
            node = {"id": file["name"], "uploadUrl": url, "uploadHeaders": [], "uploadMultipartUrls": None}
            nodes.append({"node": node | {"storagePath": file["name"], "artifact": {"id": file["artifactID"]}}})
        return {"createArtifactFiles": {"files": {"edges": nodes}}}

    def _CommitArtifact(self, variables: dict[str, Any]) -> Any:
        artifact = self._artifact(variables["artifactID"])
        artifact["state"] = "COMMITTED"
        return {"commitArtifact": {"artifact": artifact}}

    def _ArtifactByID(self, variables: dict[str, Any]) -> Any:
        artifact = self._artifact(variables["id"])
        project = {"id": "p", "internalId": "1", "name": "p", "entity": {"name": "me"}}
        nothing = dict.fromkeys(("description", "metadata", "historyStep", "commitHash", "updatedAt"))
        return {
            "artifact": nothing
            | {
                "__typename": "Artifact",
                "id": artifact["id"],
                "artifactSequence": {
                    "__typename": "ArtifactSequence",
                    "name": artifact["id"].split(":")[0],
                    "project": project,
                },
                "versionIndex": int(artifact["id"].split(":")[1]),
                "artifactType": {"name": artifact["type"]},
                "ttlIsInherited": False,
                "ttlDurationSeconds": -1,
                "tags": [],
                "state": artifact["state"],
                "size": 1,
                "digest": artifact["digest"],
                "fileCount": 1,
                "createdAt": "2026-01-01T00:00:00",
                "aliases": [],
            }
        }

    def _artifact(self, which: str) -> dict[str, Any]:
        name, version = which.split(":")
        return self.server.artifacts[name][int(version)]

    def _UpsertView2(self, variables: dict[str, Any]) -> Any:
        self.server.views[variables["name"]] = variables
        return {
            "upsertView": {"view": {"id": f"id of {variables['name']}", "name": variables["name"]}, "inserted": True}
        }

    def _Run(self, variables: dict[str, Any]) -> Any:
        return {"project": {"run": self._shown(variables["name"]) if variables["name"] in self.server.runs else None}}

    _RunHistoryKeys = _Run

    def _Runs(self, variables: dict[str, Any]) -> Any:
        edges = [{"node": self._shown(name), "cursor": name} for name in self.server.runs]
        page = {"endCursor": None, "hasNextPage": False}
        return {
            "project": {
                "internalId": "p",
                "runCount": len(edges),
                "readOnly": False,
                "runs": {"edges": edges, "pageInfo": page},
            }
        }

    def _shown(self, name: str) -> dict[str, Any]:
        rows, said = self.server.rows(name), self.server.runs[name]
        texts = {"description": "", "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00"}
        nothing = dict.fromkeys(("sweepName", "group", "jobType", "commit", "notes"))
        return {
            **nothing,
            **texts,
            "id": name,
            "projectId": "1",
            "tags": [],
            "name": name,
            "displayName": said.get("displayName", name),
            "state": "finished",
            "config": said["config"],
            "readOnly": False,
            "systemMetrics": "{}",
            "summaryMetrics": "{}",
            "historyLineCount": len(rows),
            "user": {"name": "me", "username": "me"},
            "historyKeys": {"lastStep": max((row["_step"] for row in rows), default=-1), "keys": {}},
        }

    def _RunParquetHistory(self, variables: dict[str, Any]) -> Any:
        rows = [{"_step": row["_step"]} for row in self.server.rows(variables["runName"])]
        return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": rows}}}}

    def _HistoryPage(self, variables: dict[str, Any]) -> Any:
        """The rows of a stretch of steps, as texts; the sampled history is another operation, which is not there."""
        steps = range(variables["minStep"], variables["maxStep"])
        rows = [json.dumps(row) for row in self.server.rows(variables["run"]) if row["_step"] in steps]
        return {"project": {"run": {"history": rows}}}
