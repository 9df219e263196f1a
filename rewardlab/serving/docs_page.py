"""``/docs``: every route, described and to be tried, from files of this machine; FastAPI's own loads a script of another."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, Response

ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
DOCS_PATHS = ("/docs", "/openapi.json", *(f"/docs/{name}" for name in ASSETS))
# The page begins with a script of its own, and swagger-ui sets styles.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def add_docs(app: FastAPI) -> None:
    """Serve ``/docs`` and what it consists of, which the package fastapi-offline carries."""
    folder = files("fastapi_offline") / "static"

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        page = get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title=app.title,
            swagger_js_url=f"{root}/docs/{ASSETS[0]}",
            swagger_css_url=f"{root}/docs/{ASSETS[1]}",
            swagger_favicon_url=f"{root}/docs/{ASSETS[2]}",
        )
        page.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        return page

    for name in ASSETS:

        @app.get(f"/docs/{name}", include_in_schema=False)
        async def asset(name: str = name) -> FileResponse:
            return FileResponse(str(folder / name))
