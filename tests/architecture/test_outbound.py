"""One package makes HTTP clients, so that every request that leaves the process has its bounds."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import Module, read_modules

HOME = "outbound"

FORBIDDEN = {"urllib.request", "http.client", "httpx", "requests", "aiohttp", "urllib3"}
"""Other ways to send a request over HTTP."""

ALLOWED = {"cli/demo_person.py": {"urllib.request"}}
"""The demo plays a person with a browser, who reads pages that the demo itself serves."""

MAKERS = {
    "AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport", "request", "stream", "get",
    "post", "put", "patch", "delete", "head", "options",
}  # fmt: skip
"""Names of httpx2 with which a request could be sent without our client."""

SDK_MAKERS = {"create_mcp_http_client", "sse_client"}


def uses(module: Module, within: str = "") -> Iterator[str]:
    """Name each place of a module where a client is made that is not ours."""
    within = within or module.within
    for one in module.imports:
        if one.target in FORBIDDEN - ALLOWED.get(within, set()):
            yield f"{within}:{one.line} imports {one.target}"
    for node in ast.walk(ast.parse(module.path.read_text())):
        if isinstance(node, ast.Call):
            made = [node.func]
        elif isinstance(node, ast.ClassDef):
            made = node.bases
        else:
            continue
        for name in filter(None, map(_maker, made)):
            yield f"{within}:{node.lineno} uses {name}"


def _maker(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "httpx2" and node.attr in MAKERS else ""
    return node.id if isinstance(node, ast.Name) and node.id in SDK_MAKERS else ""


def test_http_clients_are_made_in_one_package() -> None:
    modules = read_modules().values()
    found = [place for one in modules if one.package != HOME for place in uses(one)]
    assert found == []


def test_a_client_made_elsewhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.py"
    path.write_text(
        "import httpx2\nclass C(httpx2.AsyncClient): ...\nhttpx2.post('https://x')\n"
        "def annotated(client: httpx2.AsyncClient) -> None: ...\n"
    )

    elsewhere = Module(name="elsewhere", path=path, imports=())
    found = [use.partition(" ")[2] for use in uses(elsewhere, "elsewhere.py")]
    assert found == ["uses AsyncClient", "uses post"]


def test_httpx2_is_imported_by_its_name_only() -> None:
    # `from httpx2 import AsyncClient` or `import httpx2 as h` would hide a client.
    found = [
        f"{module.within}:{node.lineno}"
        for module in read_modules().values()
        for node in ast.walk(ast.parse(module.path.read_text()))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("httpx2"))
        or (isinstance(node, ast.Import) and any(_renamed(alias) for alias in node.names))
    ]
    assert found == []


def _renamed(alias: ast.alias) -> bool:
    return alias.name.startswith("httpx2") and (alias.name != "httpx2" or alias.asname is not None)
