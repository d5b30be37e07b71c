"""`antiphon lint`: each mistake is found where it stands, and sound handlers are left alone."""

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from antiphon.apps.lint.files import check_file
from antiphon.apps.lint.findings import RULES
from tests.cli.running import spawned

ROOT = Path(__file__).parents[2]

PLANTED = {
    "effect-above-ask": [
        """
        vm = await create_vm(name)  # HERE
        await ctx.approve("Start it?")
        """,
        """
        await ctx.elicit("Where?", Place)
        requests.post("https://api.test/orders", json={})  # HERE
        await ctx.elicit("Which size?", Size)
        """,
        """
        for host in hosts:
            answer = await ctx.elicit(f"Restart {host}?", Yes)
            if answer.yes:
                await restart_host(host)  # HERE
        """,
        """
        if urgent:
            subprocess.run(["deploy", name])  # HERE
        await ctx.approve("Go on?")
        """,
        """
        Path("audit.log").write_text("asked")  # HERE
        await confirm(ctx, "Sure?")
        """,
        """
        await db.execute("INSERT INTO orders VALUES (1)")  # HERE
        await ctx.sample("Say something")
        """,
        """
        await ctx.approve(f"Pay {await charge_card(name)}?")  # HERE
        """,
        """
        await ctx.once("create", create_vm(name))  # HERE
        await ctx.approve("Start it?")
        """,
        """
        try:
            await ctx.approve("Go on?")
        finally:
            await release_lock(name)  # HERE
        """,
        """
        try:
            await pay(name)  # HERE
        except ValueError:
            await ctx.approve("Once more?")
        """,
        """
        await asyncio.to_thread(send_mail, name)  # HERE
        await ctx.approve("Go on?")
        """,
        """
        await create_vm(name)  # HERE
        if ctx.answers.outcome("place", Place).status == "missing":
            return InputRequired({"place": Elicit("Where?", Place)})
        """,
        """
        try:
            client.delete("/machines/1")  # HERE
        except ValueError:
            await ctx.elicit("What now?", Place)
        await ctx.elicit("What now?", Place)
        """,
    ],
    "fresh-guard": [
        """
        if not await ctx.approve("Refund?"):
            return "no"
        if (await load_sale(name)).refunded:  # HERE
            return "Already refunded."
        return await ctx.once("refund", pay_back, name, verify=find)
        """,
        """
        sale = await db.fetch_sale(name)
        if sale.refunded:  # HERE
            raise ToolError("refunded")
        await ctx.once("refund", pay_back, name)
        """,
        """
        if not load()["paid"]:  # HERE
            await ctx.once("pay", pay, name)
        """,
        """
        if name:
            if store.has_refund(name):  # HERE
                return "refunded"
        await ctx.once("refund", pay_back, name)
        """,
    ],
    "timeout-in-effect": [
        """
        async def charge(name: str) -> str:
            async with asyncio.timeout(5):
                return await bank.charge(name)
        return await ctx.once("charge", charge, name)  # HERE
        """,
        """
        def charge(name: str) -> str:
            return requests.post("https://bank.test", json=name).text
        return await ctx.once("charge", charge, name, returns=str)  # HERE
        """,
        """
        await ctx.once("charge", lambda: bank.charge(name, timeout=3))  # HERE
        """,
    ],
    "write-above-ask": [
        """
        SEEN.append(name)  # HERE
        await ctx.approve("Go on?")
        """,
        """
        del self.table[name]  # HERE
        await ctx.approve("Go on?")
        """,
        """
        SEEN[name] = True  # HERE
        await ctx.approve("Go on?")
        """,
        """
        self.count += 1  # HERE
        await ctx.approve("Go on?")
        """,
        """
        global total
        total = 3  # HERE
        await ctx.approve("Go on?")
        """,
    ],
    "volatile-question": [
        """
        await ctx.approve(f"Approve at {datetime.now()}?")  # HERE
        """,
        """
        number = uuid.uuid4()
        await ctx.elicit(f"Order {number}: where to?", Place)  # HERE
        """,
        """
        start = time.time()
        text = f"It is {start}"
        await ctx.approve("Go on?", details={"since": text})  # HERE
        """,
        """
        from random import choice as pick
        await ctx.outcome(Elicit(f"{pick(names)}?", Place))  # HERE
        """,
        """
        return InputRequired({"go": Approve(f"At {time.time()}?")})  # HERE
        """,
    ],
    "swallowed-suspension": [
        """
        try:
            await ctx.elicit("Where?", Place)
        except:  # HERE
            pass
        """,
        """
        try:
            await ctx.elicit("Where?", Place)
        except (ValueError, BaseException) as error:  # HERE
            print(error)
        """,
        """
        with contextlib.suppress(BaseException):  # HERE
            await ctx.approve("Go on?")
        """,
        """
        try:
            await ctx.approve("Go on?")
        finally:
            return "done"  # HERE
        """,
        """
        try:
            await ctx.approve("Go on?")
        except* BaseException:  # HERE
            pass
        """,
    ],
    "not-awaited": [
        """
        if ctx.approve("Delete everything?"):  # HERE
            return "deleted"
        """,
        """
        if ready and not ctx.approve("Delete?"):  # HERE
            return "no"
        """,
        """
        ctx.once("pay", pay, name)  # HERE
        """,
        """
        region = ctx.elicit("Where?", Place).region  # HERE
        """,
        """
        place = ctx.elicit("Where?", Place)  # HERE
        return f"{place}"
        """,
        """
        place = ctx.elicit("Where?", Place)  # HERE
        await create_vm(name, place.region)
        """,
        """
        label = ctx.once("label", print_label, name)  # HERE
        """,
        """
        agreed = ctx.approve("Delete everything?")  # HERE
        if agreed:
            return "deleted"
        """,
        """
        agreed = ctx.approve("Delete everything?")  # HERE
        return f"{agreed.outcome}"
        """,
        """
        if ctx.approve("Delete everything?") is not None:  # HERE
            return "deleted"
        """,
        """
        return f"You said {ctx.elicit('What?', Place)}"  # HERE
        """,
    ],
    "form-refused": [
        """
        class Street(BaseModel):
            line: str
        class Address(BaseModel):
            name: str
            street: Street  # HERE
        return await ctx.elicit("Where?", Address)
        """,
        """
        @dataclass
        class Street:
            line: str
        class Base(TypedDict):
            street: Annotated["Street | None", "where"]  # HERE
        class Address(Base):
            tags: list[str]  # HERE
            extra: dict[str, str] = {}  # HERE
            photo: Optional[bytes] = None  # HERE
            anything: Any  # HERE
        form = Address if name else Base
        return await ctx.elicit("Where?", form=form)
        """,
        """
        class Login(BaseModel):
            user: str
            password: str  # HERE
            pin: int | None = None  # HERE
            key: SecretStr  # HERE
            code: str = Field(title="API key")  # HERE
        return await asyncio.gather(ctx.elicit("Who?", Login))
        """,
        """
        return await ctx.elicit("Sure?", bool)  # HERE
        """,
        """
        class Login(BaseModel):
            token: str  # HERE
        return InputRequired({"login": Elicit("Who?", Login)})
        """,
    ],
}

SOUND = [
    """
    class Size(StrEnum):
        SMALL = "small"
    class Address(BaseModel):
        model_config = {"extra": "forbid"}
        LIMIT: ClassVar[dict[str, int]] = {}
        _cache: dict[str, str] = {}
        size: Size
        sizes: list[Size]
        kinds: set[Literal["a", "b"]]
        amount: Annotated[Decimal, Field(gt=0)]
        when: datetime | None = None
        token_count: int
        password_reset: bool
        password: bool
        pin: str = Field(json_schema_extra={"x-antiphon-not-secret": True})
        token: Annotated[str, Field(json_schema_extra={NOT_SECRET: True})]
    class Unasked(BaseModel):
        address: Address
        password: str
    form = make_form(name)
    await ctx.elicit("Which?", form)
    await ctx.elicit("Where?", Elsewhere)
    await ctx.elicit("Where?", {"type": "object"})
    return await ctx.elicit("Where?", Address)
    """,
    """
    sale = await ctx.memo("sale", load_sale, name)
    if sale.refunded or name.count("x") or is_known:
        return "Already refunded."
    settings = {}
    if settings.get(name):
        return "no"
    if load_settings(name):
        note = "shown"
    return await ctx.once("refund", pay_back, name)
    """,
    """
    def charge(name: str) -> str:
        return requests.post("https://bank.test", json=name).text
    await ctx.once("charge", charge, name, verify=find)
    await ctx.once("again", charge, name, retry=True)
    if load_sale(name).refunded:
        return "no effect follows"
    return "done"
    """,
    """
    where, sure = ctx.elicit("Where?", Place), ctx.approve("Sure?")
    place = ctx.elicit("Where?", Place)
    if name:
        place = await place
    asked = ctx.approve("Go on?")
    return await asyncio.wait_for(asked, 5), where, sure
    """,
    """
    asyncio.create_task(look(name))
    order = Order()
    order.place = name.strip()
    await ctx.approve("Go on?")
    """,
    """
    place = await ctx.elicit("Where?", Place)
    if not await ctx.approve(f"Create it in {place.region}?"):
        return "no"
    vm = await ctx.once("create", create_vm, name, place.region)
    await ctx.once("mail", lambda: send_mail(vm))
    await start_vm(vm)
    """,
    """
    text = f"At {ctx.now()}, number {ctx.uuid()}"
    names = []
    names.append(name)
    table = {}
    table["x"] = 1
    await ctx.approve(text)
    """,
    """
    try:
        await ctx.elicit("Where?", Place)
    except Exception:
        pass
    try:
        await ctx.approve("Go on?")
    except BaseException:
        log.info("left")
        raise
    """,
    """
    if name == "all":
        await delete_everything()
        return "deleted"
    await ctx.approve("Go on?")
    """,
    """
    rows = await db.execute("SELECT * FROM orders")
    with open("settings.toml") as file:
        file.read()
    await ctx.approve(f"{len(rows)} rows?")
    """,
    """
    both = asyncio.gather(ctx.memo("a", look), ctx.memo("b", look))
    await both
    asked = ctx.approve("Go on?")
    agreed = await asked
    if agreed and asked is not None:
        return "went on"
    first = ctx.memo("c", look)
    await asyncio.gather(first)
    if first:
        return "looked"
    ctx.on_commit("mail", send_mail, name)
    """,
    """
    async def work():
        await create_vm(name)
    await ctx.approve("Go on?")
    await ctx.once("work", work)
    """,
]


def file_of(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "handlers.py"
    inside = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    path.write_text(f"@server.tool\nasync def handler(ctx: Context, name: str) -> str:\n{inside}\n")
    return path


def test_every_rule_has_a_planted_mistake() -> None:
    assert {rule.id for rule in RULES} == set(PLANTED)


@pytest.mark.parametrize(
    ("rule", "body"), [(rule, body) for rule, bodies in PLANTED.items() for body in bodies]
)
def test_a_planted_mistake_is_found_on_its_line(tmp_path: Path, rule: str, body: str) -> None:
    path = file_of(tmp_path, body)
    expected = [
        number for number, line in enumerate(path.read_text().splitlines(), 1) if "# HERE" in line
    ]
    found = [(finding.rule.id, finding.line) for finding in check_file(path)]
    assert found == [(rule, number) for number in expected]


@pytest.mark.parametrize("body", SOUND)
def test_a_sound_handler_is_left_alone(tmp_path: Path, body: str) -> None:
    assert [finding.rule.id for finding in check_file(file_of(tmp_path, body))] == []


@pytest.mark.parametrize("annotation", ["antiphon.Context", "Context[State]", '"Context"'])
def test_a_context_is_known_by_its_annotation(tmp_path: Path, annotation: str) -> None:
    path = tmp_path / "handlers.py"
    path.write_text(f"async def handler(c: {annotation}):\n    c.approve('x')\n")
    assert [finding.rule.id for finding in check_file(path)] == ["not-awaited"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.py", "x = " + "(" * 5_000 + ")" * 5_000),
        ("long.py", "x = " + "-" * 20_000 + "1"),
        ("chain.py", "x = " + "1" + "+1" * 20_000),
        ("null.py", "x = '\0'"),
        ("latin.py", "# caf\xe9"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_and_others_are_still_checked(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    file_of(tmp_path, PLANTED["effect-above-ask"][0])
    ran = spawned("lint", str(tmp_path))
    assert ran.code == 2, ran.err
    assert f"{name}: cannot be read as Python" in ran.err
    assert "Traceback" not in ran.err
    assert "1 found" in ran.out


BAD_LINE = "async def handler(ctx: Context):\n    ctx.approve('x')"


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + BAD_LINE.encode(),
        b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + BAD_LINE.encode(),
        BAD_LINE.replace("\n", "\r\n").encode(),
        # Nested deeply, and still read by Python: no reason to leave the file out.
        f"{BAD_LINE}\n    x = {'name' + '+name' * 2_000}\n".encode(),
        (BAD_LINE + "\n    if a:\n        pass\n" + "    elif b:\n        pass\n" * 2_000).encode(),
    ],
    ids=["byte order mark", "declared encoding", "line ends", "sum", "elif"],
)
def test_a_file_is_read_as_python_reads_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "handlers.py"
    path.write_bytes(data)
    assert [finding.rule.id for finding in check_file(path)] == ["not-awaited"]


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "handlers.py"
    allowed = f"{BAD_LINE}  # antiphon: allow not-awaited\n"
    path.write_text(f"import os\n\x0c\ntext = '\u2028'\n{allowed}", "utf-8")
    assert check_file(path) == []


def test_a_long_handler_takes_no_longer_than_its_length(tmp_path: Path) -> None:
    """What each line costs must not grow with the lines around it: a commit waits for this."""

    def steps(lines: int) -> int:
        path = file_of(tmp_path, "await create_vm(name)\n" * lines + 'await ctx.approve("Go?")')
        counted = 0

        def count(*_: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            assert len(check_file(path)) == lines
        finally:
            sys.setprofile(None)
        return counted

    assert steps(800) < 6 * steps(200)


def test_a_folder_whose_name_ends_like_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "package.py").mkdir()
    file_of(tmp_path, SOUND[0])
    ran = spawned("lint", str(tmp_path))
    assert (ran.code, ran.err) == (0, "")


def test_the_hook_of_pre_commit_stops_a_commit_with_a_mistake(tmp_path: Path) -> None:
    """The hook is what pre-commit starts: its entry, with the names of the changed files."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (block,) = re.findall(r"```yaml\n(.+?)```", (ROOT / "docs" / "lint.md").read_text(), re.DOTALL)
    (told,) = yaml.safe_load(block)["repos"][0]["hooks"]
    assert (told["id"], told["entry"]) == (hook["id"], hook["entry"])
    assert hook["types"] == told["types"] == ["python"]
    program, *words = hook["entry"].split()
    assert program == "antiphon"
    bad, good = file_of(tmp_path, PLANTED["not-awaited"][0]), tmp_path / "good.py"
    good.write_text("x = 1\n")
    assert spawned(*words, str(good), str(bad)).code == 1
    assert spawned(*words, str(good)).code == 0


def test_a_comment_allows_one_rule_on_one_line(tmp_path: Path) -> None:
    body = """
        await create_vm(name)  # antiphon: allow effect-above-ask
        await create_vm(name)  # antiphon: allow not-awaited
        await ctx.approve("Start it?")
        """
    assert [finding.line for finding in check_file(file_of(tmp_path, body))] == [4]


def test_the_command_says_where_why_and_what_to_do(tmp_path: Path) -> None:
    path = file_of(tmp_path, PLANTED["effect-above-ask"][0])
    ran = spawned("lint", str(tmp_path))
    assert ran.code == 1
    assert f"{path}:3:16: effect-above-ask in handler: vm = await create_vm(name)" in ran.out
    assert "ctx.once" in ran.out
    (found,) = json.loads(spawned("lint", "--json", str(path)).out)
    assert (found["id"], found["line"], found["handler"]) == ("effect-above-ask", 3, "handler")


def test_a_folder_without_mistakes_is_clean_and_a_broken_file_is_told(tmp_path: Path) -> None:
    file_of(tmp_path, SOUND[0])
    hidden = tmp_path / ".venv" / "lib.py"
    hidden.parent.mkdir()
    hidden.write_text("this is no Python")
    ran = spawned("lint", str(tmp_path))
    assert (ran.code, ran.out) == (0, "nothing found\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    ran = spawned("lint", str(tmp_path))
    assert ran.code == 2
    assert "broken.py: cannot be read as Python" in ran.err


def test_the_examples_of_the_docs_are_clean() -> None:
    ran = spawned("lint", str(ROOT / "docs_src"), str(ROOT / "examples"))
    assert (ran.code, ran.out) == (0, "nothing found\n")
