"""``/ui``: a page to judge by hand and to watch the queue; static files under a policy that lets no other script run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

PUBLIC_FOLDER = "/ui/"
INDEX, VERSION_MARK = "index.html", "VERSION"
MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Every script and style is a file of this server, and no script can make markup of a text.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def _page_files() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file of the page, by name."""
    for path in sorted((files("rewardlab.serving") / "page").iterdir(), key=lambda path: path.name):
        if path.name.rpartition(".")[2] in MEDIA_TYPES or path.name == INDEX:
            yield path.name, path.read_bytes()


def ui_routes() -> APIRouter:
    """Return the routes of the page: ``/``, which leads to it, ``/ui``, and ``/ui/VERSION/NAME`` for each of its files.

    VERSION is a hash of them all, so a browser may keep a file for good. Another version or name is a 404.
    """
    router, parts = APIRouter(tags=["native"]), dict(_page_files())
    version = hashlib.sha256(b"".join(parts.values())).hexdigest()[:16]
    index = parts.pop(INDEX).replace(VERSION_MARK.encode(), version.encode())

    @router.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse("ui")

    @router.get("/ui", response_class=Response, responses={200: {"content": {"text/html": {}}}})
    async def page() -> Response:
        """Return a page to judge by hand and to watch the queue."""
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
        return Response(index, media_type="text/html; charset=utf-8", headers=headers)

    @router.get(PUBLIC_FOLDER + "{file_version}/{name}", include_in_schema=False)
    async def part(file_version: str, name: str) -> Response:
        if file_version != version or name not in parts:
            raise HTTPException(404)
        media_type = MEDIA_TYPES[name.rpartition(".")[2]] + "; charset=utf-8"
        return Response(parts[name], media_type=media_type, headers={"Cache-Control": "public, max-age=31536000, immutable"})

    return router
