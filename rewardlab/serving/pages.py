"""The pages of a server: ``/ui``, to judge by hand and to watch the queue, and ``/docs``, its routes.

Both consist of files of this machine (FastAPI's own ``/docs`` loads a script from elsewhere), each under a policy that runs no
other script.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

PUBLIC_FOLDER = "/ui/"
INDEX, VERSION_MARK = "index.html", "VERSION"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
DOCS_ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
DOCS_PATHS = ("/docs", "/openapi.json", *(f"/docs/{name}" for name in DOCS_ASSETS))
_NOTHING_ELSE = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# No script of /ui can turn a text into markup. /docs starts with an inline script, and swagger-ui sets inline styles.
UI_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; connect-src 'self'; "
    f"{_NOTHING_ELSE}; require-trusted-types-for 'script'; trusted-types 'none'"
)
DOCS_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    f"connect-src 'self'; {_NOTHING_ELSE}"
)


def ui_routes(index: str = INDEX) -> APIRouter:
    """Return ``/``, which redirects to ``/ui``, the page ``index``; and ``/ui/VERSION/NAME`` for each file that pages load.

    VERSION is a hash of all files, so that a browser may keep a file for good. Another version or name is a 404.
    """
    router, paths = APIRouter(tags=["native"]), sorted(Path(__file__).with_name("page").iterdir())
    parts = {path.name: path.read_bytes() for path in paths if path.suffix in MEDIA_TYPES or path.name == index}
    version = hashlib.sha256(b"".join(parts.values())).hexdigest()[:16]
    text = parts.pop(index).replace(VERSION_MARK.encode(), version.encode())

    @router.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse("ui")

    @router.get("/ui", response_class=Response, responses={200: {"content": {"text/html": {}}}})
    async def page() -> Response:
        """Return a page to judge by hand and to watch the queue."""
        headers = {"Content-Security-Policy": UI_POLICY, "Cache-Control": "no-cache"}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    @router.get(PUBLIC_FOLDER + "{file_version}/{name}", include_in_schema=False)
    async def part(file_version: str, name: str) -> Response:
        if file_version != version or name not in parts:
            raise HTTPException(404)
        media_type = MEDIA_TYPES[Path(name).suffix] + "; charset=utf-8"
        return Response(parts[name], media_type=media_type, headers={"Cache-Control": "public, max-age=31536000, immutable"})

    return router


def page_routes(service: Any = None) -> APIRouter:
    """Return the page to judge by hand, and ``/docs``."""
    router = ui_routes()

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        script, style, icon = (f"{root}/docs/{name}" for name in DOCS_ASSETS)
        answer = get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title=request.app.title,
            swagger_js_url=script,
            swagger_css_url=style,
            swagger_favicon_url=icon,
        )
        answer.headers["Content-Security-Policy"] = DOCS_POLICY
        return answer

    @router.get("/docs/{name}", include_in_schema=False)
    async def asset(name: str) -> FileResponse:
        if name not in DOCS_ASSETS:
            raise HTTPException(404)
        return FileResponse(str(files("fastapi_offline") / "static" / name))

    return router
