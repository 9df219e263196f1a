"""A hub of repositories that speaks the public Hub's protocol of uploads and downloads, as huggingface_hub asks.

Small texts come with a commit; whatever else is announced as LFS, PUT under its SHA-256 and named by the commit. A commit is
whole or refused, and what a commit names must have been PUT.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN, READ_ONLY = "hf_writer", "hf_reader"
TEXTS = (".md", ".json", ".txt", ".jinja", ".jsonl", ".html", ".py")


@dataclass
class Repo:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        return hashlib.sha1(repr((self.commits, sorted(self.files))).encode()).hexdigest()


class HubServer:
    """``repos`` by kind and name ("models/me/judge"); ``fail_at`` a word of a path whose requests are answered by 403."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.fail_at = ""
        kinds = [("models", "/{owner}/{name}"), ("datasets", "/datasets/{owner}/{name}")]
        routes = [Route("/api/whoami-v2", self._whoami), Route("/api/repos/create", self._create, methods=["POST"])]
        routes.append(Route("/api/validate-yaml", self._validate, methods=["POST"]))
        for kind, page in kinds:
            api = f"/api/{kind}/{{owner}}/{{name}}"
            routes += [
                Route(f"{api}/preupload/{{revision}}", self._on(kind, self._preupload), methods=["POST"]),
                Route(f"{api}/commit/{{revision}}", self._on(kind, self._commit), methods=["POST"]),
                Route(f"{api}/tree/{{revision}}", self._on(kind, self._tree)),
                Route(f"{api}/tree/{{revision}}/{{path:path}}", self._on(kind, self._tree)),
                Route(f"{api}/revision/{{revision}}", self._on(kind, self._info)),
                Route(f"{api}/paths-info/{{revision}}", self._on(kind, self._paths), methods=["POST"]),
                Route(api, self._on(kind, self._info)),
                Route(f"{page}.git/info/lfs/objects/batch", self._on(kind, self._batch), methods=["POST"]),
                Route(f"{page}/resolve/{{revision}}/{{path:path}}", self._on(kind, self._file), methods=["GET", "HEAD"]),
            ]
        routes.append(Route("/lfs/{oid}", self._put, methods=["PUT"]))
        self.app = Starlette(routes=routes)

    def _on(self, kind: str, handle: Any) -> Any:
        async def answer(request: Request) -> Response:
            repo = self.repos.get(f"{kind}/{request.path_params['owner']}/{request.path_params['name']}")
            if repo is None or (repo.private and not _token(request)):
                return _refusal(404, "Repository not found", "RepoNotFound")
            if request.method in ("POST", "PUT") and "paths-info" not in request.url.path and _token(request) != TOKEN:
                return _refusal(403, "Forbidden: the token has no write access")
            if self.fail_at and self.fail_at in request.url.path:
                return _refusal(403, "Forbidden: storage is full")
            response: Response = await handle(request, repo)
            return response

        return answer

    async def _whoami(self, request: Request) -> Response:
        if _token(request) not in (TOKEN, READ_ONLY):
            return _refusal(401, "Invalid user token.")
        return JSONResponse({"type": "user", "name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}})

    async def _validate(self, request: Request) -> Response:
        """Refuse a card whose front matter the Hub would not take: no mapping, or an unknown shape of tags and licence."""
        content = (await request.json())["content"]
        front = yaml.safe_load(content.split("---\n")[1]) if content.startswith("---\n") else {}
        errors = [] if isinstance(front, dict) else [{"message": "metadata must be an object"}]
        errors += [
            {"message": f"{name} must be a list"} for name in ("tags", "datasets") if not isinstance(front.get(name, []), list)
        ]
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    async def _create(self, request: Request) -> Response:
        if _token(request) != TOKEN:
            return _refusal(403, "Forbidden: the token has no write access")
        wanted = await request.json()
        kind, name = f"{wanted.get('type') or 'model'}s", f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        url = f"{request.base_url}{'' if kind == 'models' else f'{kind}/'}{name}"
        if f"{kind}/{name}" in self.repos:
            return JSONResponse({"error": "You already created this repo", "url": url}, 409)
        self.repos[f"{kind}/{name}"] = Repo(wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return JSONResponse({"url": url, "name": name, "id": name})

    async def _preupload(self, request: Request, repo: Repo) -> Response:
        files = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith(TEXTS) else "lfs",
                "shouldIgnore": False,
                "oid": _git_oid(repo.files[file["path"]]) if file["path"] in repo.files else None,
            }
            for file in (await request.json())["files"]
        ]
        return JSONResponse({"files": files, "commitOid": repo.head})

    async def _batch(self, request: Request, repo: Repo) -> Response:
        objects = [
            {
                "oid": one["oid"],
                "size": one["size"],
                **(
                    {} if one["oid"] in self.blobs else {"actions": {"upload": {"href": f"{request.base_url}lfs/{one['oid']}"}}}
                ),
            }
            for one in (await request.json())["objects"]
        ]
        return JSONResponse({"transfer": "basic", "objects": objects})

    async def _put(self, request: Request) -> Response:
        body = await request.body()
        if hashlib.sha256(body).hexdigest() != request.path_params["oid"]:
            return _refusal(400, "the content has another SHA-256")
        self.blobs[request.path_params["oid"]] = body
        return Response()

    async def _commit(self, request: Request, repo: Repo) -> Response:
        files, message = dict(repo.files), ""
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.blobs:
                    return _refusal(400, f"{value['path']} was never uploaded")
                files[value["path"]] = self.blobs[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        repo.files = files
        repo.commits.append(message)
        place = request.url.path.removeprefix("/api/").removeprefix("models/").partition("/commit/")[0]
        url = f"{request.base_url}{place}/commit/{repo.head}"
        return JSONResponse({"success": True, "commitUrl": url, "commitOid": repo.head})

    async def _tree(self, request: Request, repo: Repo) -> Response:
        place = request.path_params.get("path", "").rstrip("/")
        inside = {name: content for name, content in sorted(repo.files.items()) if not place or name.startswith(f"{place}/")}
        if place and not inside:
            return _refusal(404, "Entry not found", "EntryNotFound")
        deep, entries = request.query_params.get("recursive", "").lower() in ("1", "true"), []
        for folder in sorted({parent for name in inside for parent in _parents(name)}):
            if len(folder) > len(place) and (deep or "/" not in folder[len(place) :].strip("/")):
                entries.append({"type": "directory", "path": folder, "size": 0, "oid": _git_oid(folder.encode())})
        entries += [_entry(n, content) for n, content in inside.items() if deep or "/" not in n[len(place) :].strip("/")]
        return JSONResponse(entries)

    async def _paths(self, request: Request, repo: Repo) -> Response:
        form = request.headers.get("content-type", "").startswith("application/json")
        wanted = (await request.json())["paths"] if form else (await request.form()).getlist("paths")
        folders = {parent for name in repo.files for parent in _parents(name)}
        found = [_entry(name, repo.files[name]) for name in wanted if name in repo.files]
        found += [{"type": "directory", "path": n, "size": 0, "oid": _git_oid(n.encode())} for n in wanted if n in folders]
        return JSONResponse(found)

    async def _info(self, request: Request, repo: Repo) -> Response:
        name = f"{request.path_params['owner']}/{request.path_params['name']}"
        siblings = [{"rfilename": path} for path in sorted(repo.files)]
        facts = {"id": name, "_id": name, "private": repo.private, "sha": repo.head, "siblings": siblings, "tags": []}
        return JSONResponse({**facts, "disabled": False, "gated": False, "downloads": 0, "likes": 0})

    async def _file(self, request: Request, repo: Repo) -> Response:
        if (content := repo.files.get(request.path_params["path"])) is None:
            return _refusal(404, "Entry not found", "EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": repo.head}
        headers |= {"Content-Length": str(len(content)), "Accept-Ranges": "bytes"}
        status = 200
        if (span := request.headers.get("range", "")).startswith("bytes="):
            first, _, last = span.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
            headers |= {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"}
            headers["Content-Length"], content, status = str(len(part)), part, 206
        return Response(content if request.method == "GET" else b"", status, headers)


def _token(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def _refusal(status: int, message: str, code: str = "") -> Response:
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return JSONResponse({"error": message}, status, headers=headers)


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": _git_oid(content)}
