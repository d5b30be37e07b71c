"""`antiphon doctor` finds each planted mistake; a sound project and every example is clean."""

import asyncio
import importlib
import json
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from antiphon import Context, Principal, Server
from antiphon.apps.doctor.examine import examine
from antiphon.apps.doctor.findings import COMPLAINTS, IDS
from antiphon.apps.doctor.subject import Deployment
from antiphon.apps.lint.findings import RULES
from antiphon.cli.load_server import load_server
from antiphon.seal.keyring import generate_key
from antiphon.stores.postgres import PostgresStore
from docs_src.shapes.story import Cloud
from tests.cli.running import spawned
from tests.servers import own_postgres, pgbouncer, postgres, standby_of

ROOT = Path(__file__).parents[2]
KEYS = [generate_key() for _ in range(5)]

SOUND = '''
from datetime import timedelta
from typing import Annotated
from pydantic import BaseModel, Field
from antiphon import (
    Approve, Choices, Console, Context, Elicit, ElicitUrl, Limits, OAuth, Principal, Resolve,
    Sample, Seal, Server,
)

from antiphon.console import OIDC

class Placement(BaseModel):
    region: str

server = Server("shop"{settings})

async def create(region: str) -> str:
    return region

@server.tool{options}
async def provision(ctx: Context, name: str) -> str:
    """Create a machine where it is wanted."""
    place = await ctx.elicit("Where?", Placement)
    vm = await ctx.once("create", create, place.region)
    return vm
'''


@dataclass(frozen=True)
class Planted:
    """A project with one mistake."""

    more: str = ""
    settings: str = ""
    options: str = ""
    keys: tuple[str, ...] = ()
    where: Deployment = field(default_factory=Deployment)
    body: str = ""

    @property
    def text(self) -> str:
        text = SOUND.replace("{settings}", self.settings).replace("{options}", self.options)
        if self.body:
            head, _, _ = text.partition('    place = await ctx.elicit("Where?"')
            text = head + textwrap.indent(textwrap.dedent(self.body), "    ")
        return text + textwrap.dedent(self.more)


MANY_FIELDS = "\n".join(f"    field_{number}: str" for number in range(13))
MANY_ASKS = "".join(
    f'await ctx.elicit("And now?", Placement, key="k{chr(97 + number)}")\n' for number in range(11)
)
FLOW = "\nflow = server.flow('wizard')\n" + "".join(
    f"""
@flow.step
async def step_{number}() -> Elicit:
    return Elicit("And now?", Placement)
"""
    for number in range(11)
) + '''
@flow.finish
async def finish(ctx: Context) -> str:
    """Ask a lot."""
    return "done"
'''  # fmt: skip

PLANTED: dict[str, list[Planted]] = {
    "keys-made": [
        Planted(settings=', store="postgresql://127.0.0.1:1/x"'),
        Planted(where=Deployment(machines=2), settings=', store="redis://127.0.0.1:1/0"'),
    ],
    "keys-left-over": [Planted(keys=tuple(KEYS[:4]), settings=', store="sqlite:///x.db"')],
    "key-in-source": [Planted(settings=f', seal=Seal(keys=["{KEYS[0]}"]), store="sqlite:///x.db"')],
    "store-in-memory": [
        Planted(keys=(KEYS[0],)),
        Planted(where=Deployment(machines=2)),
        Planted(settings=', store="memory:"', where=Deployment(workers=2)),
    ],
    "store-on-one-machine": [
        Planted(
            keys=(KEYS[0],),
            settings=', store="sqlite:///x.db"',
            where=Deployment(machines=2),
        )
    ],
    "store-may-forget": [Planted(keys=(KEYS[0],), settings=', store="redis://127.0.0.1:1/0"')],
    "store-without-tasks": [
        Planted(
            keys=(KEYS[0],),
            settings=', store="redis://127.0.0.1:1/0"',
            options='(task="required")',
        )
    ],
    "tasks-never-run": [Planted(settings=', task_runs="workers"')],
    "store-unreachable": [
        Planted(keys=(KEYS[0],), settings=', store="postgresql://127.0.0.1:1/x"'),
        Planted(settings=', store="sqlite:///no/such/folder/x.db"'),
    ],
    "ttl-below-think-time": [
        Planted(settings=", seal=Seal(ttl=timedelta(seconds=30))"),
        Planted(options="(ttl=60)"),
        Planted(options="(deadline=60)"),
        Planted(options="(ttl=60)", body="return await ask_somebody(ctx)"),
    ],
    "ttl-beyond-deadline": [
        Planted(options="(ttl=7200, deadline=3600)"),
        Planted(settings=", seal=Seal(ttl=timedelta(hours=72))"),
    ],
    "rounds-above-clients": [
        Planted(body=MANY_ASKS),
        Planted(more=FLOW),
        Planted(settings=", limits=Limits(rounds=64)"),
        Planted(
            body="""
            for number in range(12):
                await ctx.elicit(f"Number {number}?", Placement)
            return name
            """
        ),
    ],
    "pauses-above-clients": [
        Planted(
            body="""
            for town in range(11):
                await ctx.pause(key=f"after town {town}")
            return name
            """
        ),
        Planted(
            body="""
            while not create(name):
                await ctx.pause()
            return name
            """
        ),
        Planted(
            body="""
            for letter in name:
                await ctx.pause(key=f"after {letter}")
            return name
            """
        ),
    ],
    "principal-inert": [
        Planted(options='(restarts="adopt")'),
        Planted(options="(visible=lambda who: who.subject == 'anna')"),
        Planted(body='return await ctx.once("c", create, name, scope="arguments", window=60)'),
    ],
    "console-elsewhere": [
        Planted(
            settings=', console=Console("http://127.0.0.1:9999/console")',
            where=Deployment(port=8490),
        ),
        Planted(
            settings=', console=Console("http://localhost/console")', where=Deployment(port=8400)
        ),
    ],
    "role-nobody-holds": [
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c", roles={"ops": "g"})',
            options="(holds=True)",
            body='return str(bool(await ctx.approve("Sure?", by="finance")))',
        ),
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c", roles={"ops": "g"})',
            options='(approve=Approve("Sure?", by="finance"))',
        ),
    ],
    "approvers-of-another-issuer": [
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c"), '
            'principal=lambda scope: Principal("https://id.example", "anna")',
            options='(approve=Approve("Sure?", by="finance"))',
        ),
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c", '
            'login=OIDC("https://id.example", client_id="c")), '
            'auth=OAuth("https://b.example", audience="https://mcp.example/mcp")',
            options="(holds=True)",
            body='return str(bool(await ctx.approve("Sure?", by="finance")))',
        ),
    ],
    "by-without-console": [Planted(body='return str(await ctx.approve("Sure?", by="finance"))')],
    "asks-not-declared": [
        Planted(
            body="""
            vm = await ctx.once("create", create, name)
            await ctx.elicit("Where?", Placement)
            return vm
            """
        )
    ],
    "asks-incomplete": [
        Planted(
            options="(asks=(Elicit,))",
            body="""
            await ctx.elicit("Where?", Placement)
            return str(await ctx.sample("Say something", max_tokens=10))
            """,
        )
    ],
    "fresh-guard": [
        Planted(
            body="""
            if load_machine(name):
                return "there is one"
            return await ctx.once("create", create, name)
            """,
            more="""
            def load_machine(name: str) -> bool:
                return False
            """,
        )
    ],
    "timeout-in-effect": [
        Planted(
            body="""
            return await ctx.once("ask", ask_bank, name)
            """,
            more="""
            async def ask_bank(name: str) -> str:
                async with asyncio.timeout(5):
                    return name
            """,
        )
    ],
    "form-refused": [
        Planted(
            more='''
            @server.tool
            async def paint(ctx: Context) -> str:
                """Paint it."""
                form = {"type": "object", "properties": {}}
                await ctx.elicit("What?", form)
                return str(await ctx.elicit("Which?", Colours))

            class Colours(BaseModel):
                names: list[str]
            '''
        )
    ],
    "form-not-shown": [
        Planted(
            more='''
            FORM = {
                "type": "object",
                "properties": {
                    "colours": {
                        "type": "array", "items": {"type": "string", "enum": ["red", "blue"]}
                    }
                },
            }

            @server.tool
            async def paint(ctx: Context) -> str:
                """Paint it."""
                return str(await ctx.elicit("Which?", FORM))
            '''
        )
    ],
    "form-too-long": [
        Planted(
            more=f'''
class Longer(BaseModel):
{MANY_FIELDS}

async def ask_who() -> Elicit:
    return Elicit("Who are you?", Longer)

@server.tool
async def enrol(who: Annotated[Longer, Resolve(ask_who)]) -> str:
    """Fill it in."""
    return str(who)

flow = server.flow("enrolment")

@flow.step
async def who() -> Elicit:
    return Elicit("Who are you?", Longer)

@flow.finish
async def enrolled(who: Longer) -> str:
    """Fill it in, step by step."""
    return str(who)
'''
        ),
        Planted(
            more=f'''
class Long(BaseModel):
{MANY_FIELDS}

@server.tool
async def register(ctx: Context) -> str:
    """Fill it in."""
    return str(await ctx.elicit("Who are you?", Long))
'''
        )
    ],
    "tool-name-refused": [Planted(options='(name="shop.provision")')],
    "tool-names-alike": [
        Planted(
            more='''
            @server.tool(name="Pro_vision")
            async def other() -> str:
                """Another one."""
                return ""
            '''
        )
    ],
    "tool-without-description": [
        Planted(more="\n@server.tool\nasync def bare() -> str:\n    return ''\n")
    ],
    "argument-name-refused": [
        Planted(
            more='''
            @server.tool
            async def find(größe: int) -> str:
                """Find it."""
                return str(größe)
            '''
        ),
    ],
    "schema-refused": [
        Planted(options='(input_schema={"type": "object", "anyOf": [{"required": ["name"]}]})'),
    ],
    "too-many-tools": [
        Planted(
            more='''
            for number in range(128):
                @server.tool(name=f"tool{number}", description="One of many.")
                async def one_of_many() -> str:
                    return ""
            '''
        )
    ],
    "effect-above-ask": [
        Planted(body='await create_vm(name)\nreturn str(await ctx.approve("Start it?"))')
    ],
    "write-above-ask": [
        Planted(
            body='server.last = name\nreturn str(await ctx.approve("Start it?"))',
        )
    ],
    "volatile-question": [
        Planted(body='import uuid\nreturn str(await ctx.approve(f"Start {uuid.uuid4()}?"))')
    ],
    "swallowed-suspension": [
        Planted(
            body='try:\n    await ctx.approve("Go?")\nexcept BaseException:\n    pass\nreturn ""'
        )
    ],
    "not-awaited": [Planted(body='if ctx.approve("Go?"):\n    return "went"\nreturn ""')],
}  # fmt: skip


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(planted: Planted, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    path = folder / "project.py"
    path.write_text(planted.text)
    monkeypatch.setenv("ANTIPHON_KEYS", ",".join(planted.keys))
    return load_server(str(path))


def found_in(server: Server, where: Deployment | None = None) -> list[str]:
    return [one.id for one in asyncio.run(examine(server, where or Deployment()))]


CASES = [(id, planted) for id, cases in PLANTED.items() for planted in cases]


@pytest.mark.parametrize(
    ("id", "planted"), CASES, ids=[f"{id}-{number}" for number, (id, _) in enumerate(CASES)]
)
def test_a_planted_mistake_is_found(
    id: str, planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = loaded(planted, tmp_path, monkeypatch)
    found = asyncio.run(examine(server, planted.where))
    assert id in [one.id for one in found], found
    (first, *_) = [one for one in found if one.id == id]
    assert first.where
    assert first.reason
    assert first.cure
    assert not any(key in f"{first}" for key in KEYS)


@pytest.mark.parametrize(
    ("settings", "keys", "where"),
    [
        ("", (), Deployment()),
        ("", (), Deployment(stdio=True)),
        ("", (), Deployment(workers=4)),
        (', store="sqlite:///x.db"', (KEYS[0], KEYS[1]), Deployment(workers=4)),
        (", principal=lambda scope: Principal('a', 'b')", (), Deployment()),
    ],
)
def test_a_sound_project_is_clean(
    settings: str,
    keys: tuple[str, ...],
    where: Deployment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = loaded(Planted(settings=settings, keys=keys), tmp_path, monkeypatch)
    assert found_in(server, where) == []
    assert not (tmp_path / "x.db").exists(), "looking makes no store"


@pytest.mark.parametrize(
    "planted",
    [
        Planted(options='(restarts="adopt", restart_key=lambda given: given["name"])'),
        Planted(options="(asks=(Elicit,))", body='await ctx.once("c", create, name)\n'
                'await ctx.elicit("Where?", Placement)\nreturn ""'),
        Planted(options='(unable="Ask the person.")', body='await ctx.once("c", create, name)\n'
                'await ctx.elicit("Where?", Placement)\nreturn ""'),
        Planted(settings=', eras=("modern",)', more=PLANTED["form-not-shown"][0].more),
        Planted(body=MANY_ASKS, options='(task="allowed")'),
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c")',
            options="(holds=True)",
            body='return str(bool(await ctx.approve("Sure?", by="finance")))',
        ),
        Planted(
            settings=', console=Console("http://127.0.0.1:8401/c", roles={"finance": "g"})',
            options='(approve=Approve("Sure?", by="finance"))',
        ),
    ],
)  # fmt: skip
def test_the_cure_of_a_finding_makes_it_clean(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_in(loaded(planted, tmp_path, monkeypatch)) == []


def test_a_clock_that_differs_is_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", KEYS[0])
    for ahead, found in ((20.0, ["clocks-differ"]), (90.0, ["clocks-differ"]), (0.0, [])):
        store = PostgresStore(postgres_url, clock=lambda ahead=ahead: time.time() + ahead)
        assert found_in(Server("shop", store=store)) == found


def test_a_pooler_that_lends_connections_is_found_where_there_are_tasks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", KEYS[0])

    def shop(url: str, **options: Any) -> Server:
        server = Server("shop", store=url)

        @server.tool(**options)
        async def rebuild() -> str:
            """Rebuild."""
            return ""

        return server

    assert found_in(shop(postgres_url, task="allowed")) == []
    with pgbouncer(postgres_url) as pooled:
        assert found_in(shop(pooled, task="allowed")) == ["pooler-lends-connections"]
        assert found_in(shop(pooled)) == []


def test_asynchronous_replication_is_found_where_tools_have_effects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", KEYS[0])

    async def rebuild(ctx: Context) -> str:
        """Rebuild."""
        return await ctx.once("rebuild", str)

    async def look(ctx: Context) -> str:
        """Look."""
        return str(ctx.round)

    def shop(url: str, *, acts: bool) -> Server:
        server = Server("shop", store=url)
        server.tool(rebuild if acts else look)
        return server

    with own_postgres() as one:
        assert found_in(shop(one.dsn, acts=True)) == []
        with standby_of(one):
            assert found_in(shop(one.dsn, acts=True)) == ["replication-may-forget"]
            assert found_in(shop(one.dsn, acts=False)) == []
            with psycopg.connect(one.dsn, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            assert found_in(shop(one.dsn, acts=True)) == []


def test_every_finding_has_a_planted_mistake() -> None:
    elsewhere = {"clocks-differ", "pooler-lends-connections", "replication-may-forget"}
    assert set(PLANTED) | elsewhere == IDS
    assert set(COMPLAINTS) | {rule.id for rule in RULES} == IDS


# --- the command ---------------------------------------------------------------------------------


def test_the_command_tells_ids_reasons_and_cures_and_ends_with_an_exit_code(
    tmp_path: Path,
) -> None:
    path = tmp_path / "project.py"
    path.write_text(Planted(options="(ttl=60)").text)
    ran = spawned("doctor", str(path), ANTIPHON_KEYS="")
    assert ran.code == 1
    assert "ttl-below-think-time: tool provision" in ran.out
    assert "cure: raise ttl=" in ran.out
    machine = spawned("doctor", str(path), "--json", "--workers", "2", ANTIPHON_KEYS="")
    assert machine.code == 1
    told = json.loads(machine.out)
    assert [one["id"] for one in told["findings"]] == ["ttl-below-think-time"]
    assert told["keys"]["seals"] in told["keys"]["open"]
    path.write_text(Planted().text)
    ran = spawned("doctor", str(path), ANTIPHON_KEYS="")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "nothing found")
    assert spawned("doctor", str(tmp_path / "none.py")).code == 2
    ran = spawned("doctor", str(path), ANTIPHON_KEYS="short")
    assert ran.code == 2
    assert spawned("doctor").code == 2
    rules = spawned("doctor", "--rules").out
    assert all(f"{id}: " in rules for id in IDS)


@pytest.mark.parametrize("does", ["raise RuntimeError('no')", "import sys; sys.exit(0)"])
def test_a_module_that_fails_while_it_is_loaded_is_no_finding_and_no_success(
    does: str, tmp_path: Path
) -> None:
    path = tmp_path / "project.py"
    path.write_text(does)
    ran = spawned("doctor", str(path), "--json")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be loaded" in ran.err


def test_a_mistake_in_a_file_with_a_byte_order_mark_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", "")
    (planted,) = PLANTED["not-awaited"]
    path = tmp_path / "marked_project.py"
    path.write_text(planted.text, "utf-8-sig")
    assert found_in(load_server(str(path))) == ["not-awaited"]


def test_source_that_is_nested_too_deeply_is_no_finding_and_no_success(tmp_path: Path) -> None:
    path = tmp_path / "project.py"
    deep = f"return 'yes' if {'not ' * 1_500}name else 'no'"
    path.write_text(Planted(body=deep).text)
    ran = spawned("doctor", str(path), ANTIPHON_KEYS="")
    assert (ran.code, ran.out) == (2, "")
    assert "nested too deeply" in ran.err


def test_a_handler_with_a_variable_that_has_no_value_yet_is_looked_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", "")
    path = tmp_path / "late_project.py"
    path.write_text(
        "from antiphon import Context, Server\n"
        "server = Server('late')\n"
        "def build(ready):\n"
        "    @server.tool\n"
        "    async def greet(ctx: Context) -> str:\n"
        "        'Greet.'\n"
        "        return words\n"
        "    if ready:\n"
        "        words = 'hello'\n"
        "build(False)\n"
    )
    assert found_in(load_server(str(path))) == []


# --- examples ------------------------------------------------------------------------------------

SERVERS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("examples", "docs_src", "deploy", "peers/hosts")
    for path in (ROOT / folder).rglob("*.py")
    if any(line.startswith("server = Server(") for line in path.read_text().splitlines())
)
ON_STDIO = {"docs_src/services.py"}
"""Ends with `server.run()`, which serves one client."""


def test_examples_were_found() -> None:
    assert {"docs_src/cloud.py", "examples/provision.py", "deploy/shop.py"} <= set(SERVERS)


@pytest.mark.parametrize("name", SERVERS)
def test_an_example_is_clean(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", "")
    monkeypatch.syspath_prepend(str(ROOT))
    server = load_server(str(ROOT / name))
    assert found_in(server, Deployment(stdio=name in ON_STDIO)) == []


@pytest.mark.parametrize("shape", ["linear", "native", "parked", "resolvers", "steps"])
def test_a_server_of_each_shape_is_clean(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", "")
    module = importlib.import_module(f"docs_src.shapes.{shape}")
    assert found_in(module.build(Cloud())) == []


async def _who(scope: Any) -> Principal:
    return Principal("https://id.example", "anna")


BUILT: dict[str, Callable[[Any], Server]] = {
    "approvals": lambda page: page.make_server([]),
    "divergence": lambda page: page.careful_release(),
    "effects": lambda page: page.make_server(Cloud(), principal=_who),
    "gateway": lambda page: page.mounted(),
    "linear": lambda page: page.make_server(),
    "shapes.extras": lambda page: page.build(),
    "tasks": lambda page: page.make_server(Cloud()),
}


@pytest.mark.parametrize("name", BUILT)
def test_a_server_that_a_page_builds_is_clean(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_KEYS", "")
    page = importlib.import_module(f"docs_src.{name}")
    assert found_in(BUILT[name](page)) == []
