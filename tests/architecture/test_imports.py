"""Imports point inward only, and each third-party package has its package.

A new package or a new dependency is a change of the tables below and needs a reason.
"""

import sys
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import PACKAGE, Import, Module, package_of, read_modules

MODULES = read_modules()

EVERY_PACKAGE = {
    "errors", "core", "ports", "wire", "forms", "seal", "audit", "environment", "engine",
    "subscriptions", "handlers", "tasks", "carriers", "auth", "console", "dev", "dispatcher",
    "lifetime", "assembly", "stores", "doctor", "client", "transports", "processes", "server",
    "telemetry", "testing", "cli", "lint", "gateway", "ext", "outbound", PACKAGE,
}  # fmt: skip

ENTRY = "__main__"
"""`python -m antiphon`. Nobody imports it."""

_MIDDLE = {"errors", "core", "ports", "wire", "forms", "seal"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "ports": {"core", "errors"},
    "wire": {"core", "errors"},
    "forms": {"core", "errors"},
    "seal": {"core", "ports", "errors"},
    "audit": {"core", "ports", "errors"},
    "environment": {"core", "ports", "seal", "errors"},
    "engine": _MIDDLE | {"environment"},
    "subscriptions": {"errors", "core", "ports", "wire"},
    "handlers": _MIDDLE | {"engine"},
    "tasks": _MIDDLE | {"environment", "engine"},
    "dispatcher": {"errors", "core", "wire", "subscriptions"},
    "lifetime": {"errors", "seal", "environment", "engine", "handlers", "subscriptions", "tasks"},
    "assembly": _MIDDLE
    | {"environment", "engine", "handlers", "subscriptions", "tasks", "dispatcher", "lifetime"}
    | {"stores", "carriers", "audit"},
    "carriers": {"core", "ports", "errors"},
    "stores": {"core", "ports", "errors"},
    "lint": {"core"},
    "doctor": {
        "errors",
        "core",
        "forms",
        "seal",
        "engine",
        "handlers",
        "assembly",
        "server",
        "lint",
    },
    "outbound": {"core"},
    "auth": {"core", "errors", "outbound", "transports"},
    "console": {"core", "ports", "errors", "forms", "environment", "outbound"},
    "dev": _MIDDLE
    | {"environment", "handlers", "client", "console", "dispatcher", "assembly", "processes"}
    | {"engine", "transports", "lint", "outbound"},
    "client": {"core", "ports", "wire", "forms", "errors", "outbound"},
    "gateway": {"core", "errors", "client", "engine", "handlers", "outbound"},
    "telemetry": {"core", "ports", "errors"},
    "transports": _MIDDLE | {"dispatcher", "subscriptions"},
    "processes": {"core", "errors", "ports", "wire", "transports"},
    "server": EVERY_PACKAGE
    - {"server", "client", "dev", "doctor", "ext", "telemetry", "testing", "cli", "lint", PACKAGE},
    "ext": {"core", "errors", "handlers", "seal", "server", "transports", "wire"},
    "testing": EVERY_PACKAGE - {"cli", "dev", "ext"},
    "cli": EVERY_PACKAGE - {"cli", "ext"},
    ENTRY: {"cli"},
    PACKAGE: EVERY_PACKAGE
    - {"testing", "cli", "dev", "doctor", "ext", "telemetry", "transports", "processes"},
}
"""Besides itself."""

STILL_OUTWARD: dict[str, set[str]] = {}
"""What is left to be turned round; the list only gets shorter."""

THIRD_PARTY: dict[str, set[str]] = {
    "core/*": {"msgspec"},
    "ports/*": {"msgspec"},
    "wire/*": {"msgspec"},
    "forms/*": {"msgspec", "pydantic", "pydantic_core"},
    "seal/*": {"cryptography", "msgspec"},
    "seal/sealer.py": {"pydantic"},
    "audit/*": {"msgspec"},
    "engine/*": {"anyio", "msgspec", "pydantic", "pydantic_core"},
    "handlers/*": {"msgspec", "pydantic", "pydantic_core"},
    "tasks/*": {"msgspec"},
    "carriers/nats.py": {"msgspec", "nats"},
    "carriers/temporal.py": {"msgspec", "temporalio"},
    "auth/authorization_server.py": {"joserfc", "mcp"},
    "auth/grants.py": {"joserfc"},
    "auth/keys.py": {"joserfc"},
    "auth/resource_server.py": {"mcp", "pydantic"},
    "console/*": {"msgspec", "starlette"},
    "console/pages.py": {"jinja2"},
    "console/oidc_flow.py": {"httpx2", "joserfc"},
    "outbound/*": {"httpx2"},
    "outbound/fetching.py": {"msgspec"},
    "doctor/*": {"msgspec"},
    "dev/*": {"msgspec"},
    "dev/call.py": {"pydantic"},
    "dev/face.py": {"starlette"},
    "dev/process.py": {"watchfiles"},
    "dev/raw_requests.py": {"httpx2"},
    "dev/wire.py": {"httpx2"},
    "client/*": {"anyio", "httpx2", "mcp", "mcp_types", "msgspec", "pydantic", "pydantic_core"},
    "client/http.py": {"opentelemetry"},
    "client/prepared_call.py": {"opentelemetry"},
    "client/terminal*": {"rich"},
    "gateway/pins.py": {"msgspec"},
    "gateway/mount.py": {"mcp", "mcp_types", "pydantic"},
    "gateway/watching.py": {"mcp", "mcp_types"},
    "gateway/oauth.py": {"httpx2", "mcp"},
    "ext/fastmcp.py": {"fastmcp", "mcp", "mcp_types", "pydantic"},
    "ext/handing_on.py": {"mcp", "mcp_types", "pydantic"},
    "ext/hosted.py": {"mcp", "mcp_types", "msgspec"},
    "ext/mcp.py": {"mcp", "mcp_types", "pydantic"},
    "ext/request_state.py": {"mcp"},
    "gateway/openapi.py": {"httpx2"},
    "stores/*": {"msgspec"},
    "stores/postgres*": {"psycopg"},
    "stores/redis*": {"redis"},
    "telemetry/*": {"opentelemetry"},
    "telemetry/prometheus.py": {"prometheus_client"},
    "transports/*": {"anyio", "msgspec"},
    "transports/legacy/*": {"mcp", "mcp_types", "pydantic", "sse_starlette"},
    "processes/*": {"msgspec"},
    "processes/event_loop*": {"uvloop"},
    "testing/*": {"msgspec", "pydantic", "pydantic_core", "pytest"},
    "cli/*": {"msgspec", "pydantic", "rich", "typer"},
    "cli/login/saved.py": {"keyring"},
}
"""By file; what several patterns allow adds up. A file that no pattern names may import none."""

LOADED_LATE: dict[str, set[str]] = {
    "carriers/url.py": {"antiphon.carriers.nats", "antiphon.carriers.temporal"},
    "console/oidc.py": {"antiphon.console.oidc_flow"},
    "console/serving.py": {
        "antiphon.console.app",
        "antiphon.console.counting",
        "antiphon.console.notices",
    },
    "cli/authoring/try_tool.py": {"antiphon.client.client", "antiphon.testing.remote"},
    "cli/connect.py": {"antiphon.client.blocking"},
    "cli/login/commands.py": {
        "antiphon.client.login.browser",
        "antiphon.client.login.device",
        "antiphon.client.login.provider",
    },
    "cli/demo.py": {"antiphon.client.blocking"},
    "cli/demo_refund.py": {"antiphon.client.blocking"},
    "cli/local_server.py": {
        "antiphon.processes.event_loop",
        "antiphon.processes.http_server",
    },
    "cli/authoring/dev.py": {"antiphon.dev.run", "antiphon.processes.event_loop"},
    "cli/operating/inbox.py": {"antiphon.processes.http_server"},
    "cli/gateways/command.py": {"antiphon.processes.event_loop", "antiphon.processes.http_server"},
    "cli/gateways/settings.py": {"antiphon.gateway.oauth"},
    "cli/serve.py": {
        "antiphon.processes.event_loop",
        "antiphon.processes.http_server",
        "antiphon.processes.supervisor",
        "antiphon.telemetry.prometheus",
    },
    "server/running.py": {
        "antiphon.auth.resource_server",
        "antiphon.processes.event_loop",
        "antiphon.processes.http_server",
    },
    "server/server.py": {"antiphon.gateway.assembly", "antiphon.gateway.openapi"},
}
"""Our own modules that a file may import inside a function, each because loading it early would
cost everybody what only some need: the legacy transport, the client, an optional driver, or a
server, which reads keys and store of the environment."""


def our_imports(module: Module) -> list[Import]:
    return [one for one in module.imports if one.target.split(".")[0] == PACKAGE]


def places(module: Module, imports: list[Import]) -> list[str]:
    return [f"{module.within}:{one.line} imports {one.target}" for one in imports]


def flat(found: list[list[str]]) -> list[str]:
    return [line for lines in found for line in lines]


def test_the_tables_name_the_rooms_that_there_are() -> None:
    # A moved folder may neither escape the tables nor leave an empty line in them.
    found = {module.package for module in MODULES.values()}
    assert found == EVERY_PACKAGE | {ENTRY} == set(MAY_IMPORT)


def test_imports_point_inward_only() -> None:
    def strays(module: Module) -> list[Import]:
        allowed = MAY_IMPORT[module.package] | {module.package}
        known = STILL_OUTWARD.get(module.within, set())
        return [
            one
            for one in our_imports(module)
            if package_of(one.target) not in allowed and one.target not in known
        ]

    assert flat([places(module, strays(module)) for module in MODULES.values()]) == []


def test_each_third_party_package_stays_in_its_package() -> None:
    def strays(module: Module) -> list[Import]:
        matching = (names for glob, names in THIRD_PARTY.items() if fnmatch(module.within, glob))
        allowed = set[str]().union(*matching) | {PACKAGE, *sys.stdlib_module_names}
        return [one for one in module.imports if one.target.split(".")[0] not in allowed]

    assert flat([places(module, strays(module)) for module in MODULES.values()]) == []


@pytest.mark.parametrize("glob", THIRD_PARTY)
def test_a_room_is_allowed_no_package_that_it_does_not_use(glob: str) -> None:
    files = [module for module in MODULES.values() if fnmatch(module.within, glob)]
    used = {one.target.split(".")[0] for module in files for one in module.imports}
    assert THIRD_PARTY[glob] - used == set()


def test_no_module_imports_itself_around_a_corner() -> None:
    graph = {
        name: {
            one.target
            for one in our_imports(module)
            if one.runs_on_import and one.target in MODULES and one.target != name
        }
        for name, module in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_our_own_modules_are_imported_at_the_top_of_a_file() -> None:
    def strays(module: Module) -> list[Import]:
        late = LOADED_LATE.get(module.within, set())
        inside = (one for one in our_imports(module) if one.in_function)
        return [one for one in inside if one.target not in late]

    assert flat([places(module, strays(module)) for module in MODULES.values()]) == []


def test_what_may_be_loaded_late_is_loaded_late_somewhere() -> None:
    for within, targets in LOADED_LATE.items():
        module = next(one for one in MODULES.values() if one.within == within)
        assert targets <= {one.target for one in our_imports(module) if one.in_function}, within


def test_every_imported_module_of_ours_exists() -> None:
    def strays(module: Module) -> list[Import]:
        return [one for one in our_imports(module) if one.target not in MODULES]

    assert flat([places(module, strays(module)) for module in MODULES.values()]) == []
