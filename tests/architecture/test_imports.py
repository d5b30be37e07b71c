"""Imports point inward only, and each third-party package has its package.

A new package or a new dependency is a change of the tables below and needs a reason.
"""

import sys
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import GROUPED, PACKAGE, Import, Module, package_of, read_modules

MODULES = read_modules()

EVERY_PACKAGE = {
    "errors", "protocol", "ports", "forms", "seal", "engine", "handlers", "tasks", "stores",
    "outbound", "transports", "client", "auth", "audit", "console", "telemetry", "server",
    "integrations", "apps", *GROUPED, "testing", "cli", PACKAGE,
}  # fmt: skip

ENTRY = "__main__"
"""`python -m antiphon`. Nobody imports it."""

_MIDDLE = {"errors", "protocol", "ports", "forms", "seal"}
_ONLY_ON_TOP = {"testing", "cli", "apps.dev", "apps.doctor", "apps.lint", "apps", "integrations"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "protocol": {"errors"},
    "ports": {"protocol", "errors"},
    "forms": {"protocol", "errors"},
    "seal": {"protocol", "ports", "errors"},
    "engine": _MIDDLE,
    "handlers": _MIDDLE | {"engine"},
    "tasks": _MIDDLE | {"engine"},
    "stores": {"protocol", "ports", "errors"},
    "outbound": {"protocol"},
    "transports": _MIDDLE,
    "client": {"protocol", "ports", "forms", "errors", "outbound"},
    "auth": {"protocol", "errors"},
    "audit": {"errors"},
    "console": {"protocol", "errors", "apps.console"},
    "telemetry": {"integrations.telemetry"},
    "integrations": {"protocol", "errors", "handlers", "seal", "server", "transports"},
    "integrations.audit": {"protocol", "ports", "errors", "audit"},
    "integrations.oauth": {"protocol", "errors", "outbound", "transports", "auth"},
    "integrations.telemetry": {"protocol", "ports", "errors"},
    "apps": set(),
    "apps.console": {"protocol", "ports", "errors", "forms", "engine", "outbound", "console"},
    "apps.dev": _MIDDLE
    | {"engine", "handlers", "client", "console", "apps.console", "server", "transports"}
    | {"apps.lint", "outbound"},
    "apps.doctor": _MIDDLE | {"engine", "handlers", "server", "apps.lint"},
    "apps.gateway": {"protocol", "errors", "client", "engine", "handlers", "outbound"},
    "apps.lint": {"protocol"},
    "server": EVERY_PACKAGE
    - _ONLY_ON_TOP
    - {"client", "telemetry", "integrations.telemetry", PACKAGE},
    "testing": EVERY_PACKAGE - {"cli", "apps.dev", "integrations"},
    "cli": EVERY_PACKAGE - {"integrations"},
    ENTRY: {"cli"},
    PACKAGE: EVERY_PACKAGE - _ONLY_ON_TOP - {"transports", "telemetry", "integrations.telemetry"},
}
"""Besides itself."""

STILL_OUTWARD: dict[str, set[str]] = {}
"""What is left to be turned round; the list only gets shorter."""

THIRD_PARTY: dict[str, set[str]] = {
    "protocol/*": {"msgspec"},
    "ports/*": {"msgspec"},
    "forms/*": {"msgspec", "pydantic", "pydantic_core"},
    "seal/*": {"cryptography", "msgspec"},
    "seal/sealer.py": {"pydantic"},
    "integrations/audit/*": {"msgspec"},
    "engine/*": {"anyio", "msgspec", "pydantic", "pydantic_core"},
    "handlers/*": {"msgspec", "pydantic", "pydantic_core"},
    "tasks/*": {"msgspec"},
    "console.py": {"starlette"},
    "tasks/queues/nats.py": {"msgspec", "nats"},
    "tasks/queues/temporal.py": {"msgspec", "temporalio"},
    "integrations/oauth/authorization_server.py": {"joserfc", "mcp"},
    "integrations/oauth/grants.py": {"joserfc"},
    "integrations/oauth/keys.py": {"joserfc"},
    "integrations/oauth/resource_server.py": {"mcp", "pydantic"},
    "apps/console/*": {"msgspec", "starlette"},
    "apps/console/pages.py": {"jinja2"},
    "apps/console/oidc_flow.py": {"httpx2", "joserfc"},
    "outbound/*": {"httpx2"},
    "outbound/fetching.py": {"msgspec"},
    "apps/doctor/*": {"msgspec"},
    "apps/dev/*": {"msgspec"},
    "apps/dev/call.py": {"pydantic"},
    "apps/dev/face.py": {"starlette"},
    "apps/dev/process.py": {"watchfiles"},
    "apps/dev/raw_requests.py": {"httpx2"},
    "apps/dev/wire.py": {"httpx2"},
    "client/*": {"anyio", "httpx2", "mcp", "mcp_types", "msgspec", "pydantic", "pydantic_core"},
    "client/http.py": {"opentelemetry"},
    "client/prepared_call.py": {"opentelemetry"},
    "client/terminal*": {"rich"},
    "apps/gateway/pins.py": {"msgspec"},
    "apps/gateway/mount.py": {"mcp", "mcp_types", "pydantic"},
    "apps/gateway/watching.py": {"mcp", "mcp_types"},
    "apps/gateway/oauth.py": {"httpx2", "mcp"},
    "integrations/fastmcp.py": {"fastmcp", "mcp", "mcp_types", "pydantic"},
    "integrations/handing_on.py": {"mcp", "mcp_types", "pydantic"},
    "integrations/hosted.py": {"mcp", "mcp_types", "msgspec"},
    "integrations/mcp_sdk.py": {"mcp", "mcp_types", "pydantic"},
    "integrations/request_state.py": {"mcp"},
    "apps/gateway/openapi.py": {"httpx2"},
    "stores/*": {"msgspec"},
    "stores/postgres*": {"psycopg"},
    "stores/redis*": {"redis"},
    "integrations/telemetry/*": {"opentelemetry"},
    "integrations/telemetry/prometheus.py": {"prometheus_client"},
    "transports/*": {"anyio", "msgspec"},
    "transports/legacy/*": {"mcp", "mcp_types", "pydantic", "sse_starlette"},
    "transports/processes/*": {"msgspec"},
    "transports/processes/event_loop*": {"uvloop"},
    "testing/*": {"msgspec", "pydantic", "pydantic_core", "pytest"},
    "cli/*": {"msgspec", "pydantic", "rich", "typer"},
    "cli/login/saved.py": {"keyring"},
}
"""By file; what several patterns allow adds up. A file that no pattern names may import none."""

LOADED_LATE: dict[str, set[str]] = {
    "tasks/queues/url.py": {"antiphon.tasks.queues.nats", "antiphon.tasks.queues.temporal"},
    "console.py": {"antiphon.apps.console.oidc_flow"},
    "apps/console/serving.py": {
        "antiphon.apps.console.app",
        "antiphon.apps.console.counting",
        "antiphon.apps.console.notices",
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
        "antiphon.transports.processes.event_loop",
        "antiphon.transports.processes.http_server",
    },
    "cli/authoring/dev.py": {"antiphon.apps.dev.run", "antiphon.transports.processes.event_loop"},
    "cli/operating/inbox.py": {"antiphon.transports.processes.http_server"},
    "cli/gateways/command.py": {
        "antiphon.transports.processes.event_loop",
        "antiphon.transports.processes.http_server",
    },
    "cli/gateways/settings.py": {"antiphon.apps.gateway.oauth"},
    "cli/serve.py": {
        "antiphon.transports.processes.event_loop",
        "antiphon.transports.processes.http_server",
        "antiphon.transports.processes.supervisor",
        "antiphon.integrations.telemetry.prometheus",
    },
    "server/running.py": {
        "antiphon.integrations.oauth.resource_server",
        "antiphon.transports.processes.event_loop",
        "antiphon.transports.processes.http_server",
    },
    "server/server.py": {"antiphon.apps.gateway.assembly", "antiphon.apps.gateway.openapi"},
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
