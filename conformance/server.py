"""The server that the official suite is run against: one handler for each thing it looks for.

    antiphon serve conformance.server:server --http 127.0.0.1:8400

Names, keys and texts are the suite's. Handlers that ask are written in the native shape, because
the suite fixes the key of every ask and looks at single rounds.
"""

import asyncio
import base64
from typing import Annotated, Any

from pydantic import BaseModel, Field

from antiphon import (
    Audio,
    Contents,
    Context,
    Elicit,
    Embedded,
    Image,
    InputRequired,
    InvalidRequest,
    ListRoots,
    Message,
    Sample,
    Server,
    Text,
    ToolError,
)

server = Server("antiphon-conformance", version="0.1.0")

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)
WAV = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0\x80>\0\0\x02\0\x10\0data\0\0\0\0"
BEAT = 0.05
"""Seconds between two notifications of one call, as the suite's contract asks."""


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


class Confirm(BaseModel):
    ok: bool


class Background(BaseModel):
    context: str


class Account(BaseModel):
    username: str
    email: str


# --- plain tools ----------------------------------------------------------------------------------


@server.tool
def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Image:
    """Answer with an image."""
    return Image(PNG, "image/png")


@server.tool
def test_audio_content() -> Audio:
    """Answer with a sound."""
    return Audio(WAV, "audio/wav")


@server.tool
def test_embedded_resource() -> Embedded:
    """Answer with a resource."""
    return Embedded(
        Contents("test://embedded-resource", text="An embedded resource.", mime_type="text/plain")
    )


@server.tool
def test_multiple_content_types() -> list[Text | Image | Embedded]:
    """Answer with a text, an image and a resource."""
    note = Contents("test://mixed-content-resource", text='{"a": 1}', mime_type="application/json")
    return [Text("Several kinds of content."), Image(PNG, "image/png"), Embedded(note)]


@server.tool
def test_error_handling() -> str:
    """Fail in the way a tool fails."""
    raise ToolError("This tool always fails.")


@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for done in (0, 50, 100):
        await ctx.report(done, total=100)
        await asyncio.sleep(BEAT)
    return "Progress reported."


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three times."""
    for line in ("started", "working", "finished"):
        await ctx.log(line)
        await asyncio.sleep(BEAT)
    return "Logged three messages."


@server.tool
async def test_logging_tool(ctx: Context) -> str:
    """Log once."""
    await ctx.log("a message for whoever asked for messages")
    return "Logged one message."


@server.tool
def test_x_mcp_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Echo an argument that travels in a header too."""
    return region


@server.tool(
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
def json_schema_2020_12_tool(name: str = "", phone: str = "", email: str = "") -> str:
    """Take arguments that only a full JSON schema describes."""
    return f"{name or 'somebody'} can be reached at {phone or email}."


# --- changes of the lists -------------------------------------------------------------------------


@server.tool
def test_trigger_tool_change() -> str:
    """Add a tool and remove it again, so that listeners hear of it."""

    def passing() -> str:
        """Be there for a moment."""
        return "here"

    server.tool(passing)
    server.remove("tool", "passing")
    return "The list of tools changed."


@server.tool
def test_trigger_prompt_change() -> str:
    """Add a prompt and remove it again, so that listeners hear of it."""

    def passing_prompt() -> str:
        """Be there for a moment."""
        return "here"

    server.prompt(passing_prompt)
    server.remove("prompt", "passing_prompt")
    return "The list of prompts changed."


# --- tools that ask -------------------------------------------------------------------------------


@server.tool(asks=(Sample,))
async def test_missing_capability(ctx: Context) -> str | InputRequired:
    """Need a client that samples."""
    if ctx.answers.get("completion") is None:
        return InputRequired({"completion": Sample("Say yes.", max_tokens=10)})
    return "The client can sample."


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str | InputRequired:
    """Ask by a form."""
    if ctx.answers.get("user_name", Name) is None:
        return InputRequired({"user_name": Elicit("What is your name?", Name)})
    return "Thank you."


# The suite sends the answer with its first request, which counts only for a tool that says so.
@server.tool(unasked="accept")
async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequired:
    """Ask for a name and greet."""
    name = ctx.answers.get("user_name", Name)
    if name is None:
        return InputRequired({"user_name": Elicit("What is your name?", Name)})
    return f"Hello, {name.name}!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str | InputRequired:
    """Ask the client's model for a capital."""
    completion = ctx.answers.get("capital_question")
    if completion is None:
        question = Sample("What is the capital of France?", max_tokens=100)
        return InputRequired({"capital_question": question})
    return completion.text


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequired:
    """Ask for the workspace roots."""
    roots = ctx.answers.get("client_roots")
    if roots is None:
        return InputRequired({"client_roots": ListRoots()})
    return ", ".join(root.uri for root in roots) or "no roots"


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str | InputRequired:
    """Ask for a confirmation and remember something meanwhile."""
    if ctx.answers.get("confirm", Confirm) is None:
        return InputRequired({"confirm": Elicit("Go on?", Confirm)}, state={"step": "confirm"})
    return "state-ok" if ctx.state == {"step": "confirm"} else "state-lost"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequired:
    """Ask for three kinds of input at once."""
    name = ctx.answers.get("user_name", Name)
    greeting = ctx.answers.get("greeting")
    roots = ctx.answers.get("client_roots")
    if name is None or greeting is None or roots is None:
        asks = {
            "user_name": Elicit("What is your name?", Name),
            "greeting": Sample("Write a greeting.", max_tokens=50),
            "client_roots": ListRoots(),
        }
        return InputRequired(asks, state={"asked": sorted(asks)})
    return f"{greeting.text} {name.name}, you have {len(roots)} roots."


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequired:
    """Ask for a name, then for a colour."""
    name = ctx.answers.get("step1", Name)
    if name is None:
        return InputRequired({"step1": Elicit("Step 1: your name?", Name)}, state={"step": 1})
    color = ctx.answers.get("step2", Color)
    if color is None:
        return InputRequired({"step2": Elicit("Step 2: your colour?", Color)}, state={"step": 2})
    return f"{name.name} likes {color.color}."


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequired:
    """Ask with a state that must come back as it was."""
    if ctx.answers.get("confirm", Confirm) is None:
        return InputRequired({"confirm": Elicit("Go on?", Confirm)}, state={"guarded": True})
    return "The state came back unchanged."


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str | InputRequired:
    """Ask only in the ways this client can answer."""
    asks = {
        "user_name": Elicit("What is your name?", Name),
        "greeting": Sample("Write a greeting.", max_tokens=50),
        "client_roots": ListRoots(),
    }
    possible = {key: ask for key, ask in asks.items() if ctx.can(type(ask))}
    missing = {key: ask for key, ask in possible.items() if not ctx.answers.outcome(key)}
    if missing:
        return InputRequired(missing)
    return f"Answered: {', '.join(possible) or 'nothing'}."


# --- tools of the legacy era ----------------------------------------------------------------------


@server.tool
async def test_sampling(ctx: Context, prompt: str) -> str:
    """Ask the client's model."""
    completion = await ctx.sample(prompt, max_tokens=100)
    return f"LLM response: {completion.text}"


@server.tool
async def test_elicitation(ctx: Context, message: str) -> str:
    """Ask for an account."""
    account = await ctx.elicit(message, Account)
    return f"User response: {account.username}, {account.email}"


DEFAULTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}

ONE_TWO_THREE = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
ENUMS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ONE_TWO_THREE},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ONE_TWO_THREE,
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ONE_TWO_THREE}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    },
}


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask by a form whose fields have defaults."""
    answer = await ctx.elicit("Check these values.", DEFAULTS)
    return f"Elicitation completed: {sorted(answer)}"


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask by a form with every kind of choice."""
    answer = await ctx.elicit("Choose.", ENUMS)
    return f"Elicitation completed: {sorted(answer)}"


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Let go of the connection in the middle; the client comes back for the result."""
    await ctx.release_stream()
    await asyncio.sleep(BEAT)
    return "The result found its way after a reconnection."


# --- prompts --------------------------------------------------------------------------------------


@server.prompt
def test_simple_prompt() -> str:
    """Give one message."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Give a message that holds both arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """Give a message that holds a resource."""
    contents = Contents(resourceUri, text="An embedded resource.", mime_type="text/plain")
    return [Message(Embedded(contents)), Message("Please work with the resource above.")]


@server.prompt
def test_prompt_with_image() -> list[Message]:
    """Give a message that holds an image."""
    return [Message(Image(PNG, "image/png")), Message("Please describe the image above.")]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str | InputRequired:
    """Ask for a context before giving a message."""
    background = ctx.answers.get("user_context", Background)
    if background is None:
        return InputRequired({"user_context": Elicit("What is this about?", Background)})
    return f"Please help with {background.context}."


@server.completion("test_prompt_with_arguments", "arg1")
def complete_arg1(value: str) -> list[str]:
    """Complete the first argument."""
    return [word for word in ("test-one", "test-two", "other") if word.startswith(value)]


# --- resources ------------------------------------------------------------------------------------


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Some bytes."""
    return PNG


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, str]:
    """Data for an id."""
    return {"id": id, "data": f"Data for ID: {id}"}


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """A resource that clients subscribe to."""
    return "Watched."


# --- tasks ----------------------------------------------------------------------------------------


class Confirmation(BaseModel):
    """Whether to go on."""

    confirm: bool


@server.tool
def greet(name: str) -> str:
    """Greet at once."""
    return f"Hello, {name}!"


@server.tool(task="allowed")
async def slow_compute(ctx: Context, seconds: float = 1.0, label: str = "result") -> str:
    """Take a while."""
    await ctx.report(0, seconds, "computing")
    await asyncio.sleep(seconds)
    return f"{label}: done after {seconds:g} s"


@server.tool(task="required")
async def failing_job() -> str:
    """Fail after a while."""
    await asyncio.sleep(1)
    raise ToolError("The job failed on purpose.")


@server.tool(task="allowed")
async def protocol_error_job() -> str:
    """End in a protocol error."""
    raise InvalidRequest("This job breaks the protocol on purpose.", code=-32603)


@server.tool(task="allowed")
async def confirm_delete(ctx: Context, filename: str) -> str:
    """Delete a file after a confirmation."""
    answer = await ctx.elicit(f"Delete {filename}?", Confirmation, key="confirm")
    return f"{filename} deleted." if answer.confirm else f"{filename} kept."


@server.tool(task="allowed")
async def multi_input(ctx: Context) -> str:
    """Ask two things at once."""
    answers = await ctx.gather(first=Elicit("First?", Name), second=Elicit("Second?", Name))
    return f"{answers['first'].name} and {answers['second'].name}"


@server.tool(detach="refuse")
async def test_tool_with_task(ctx: Context) -> str:
    """Ask for a name, then go on in the background."""
    person = await ctx.elicit("What is your name?", Name, key="user_name")
    await ctx.detach("greeting")
    return f"Hello, {person.name}!"
