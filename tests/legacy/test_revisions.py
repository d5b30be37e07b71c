from typing import Any

import pytest

from antiphon.transports.legacy.revisions import abilities, ask_params, degrade, notice

URL = {"mode": "url", "message": "Go.", "url": "https://example.com"}


@pytest.mark.parametrize(
    ("declared", "revision", "found"),
    [
        ({"elicitation": {}}, "2025-11-25", {"elicitation": {}}),
        ({"elicitation": {"url": {}}}, "2025-11-25", {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, "2025-06-18", {"elicitation": {}}),
        ({"elicitation": {}}, "2025-03-26", {}),
        ({"elicitation": "yes"}, "2025-11-25", {}),
        ({"sampling": {"tools": {}}}, "2025-11-25", {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, "2025-06-18", {"sampling": {"context": {}}}),
        ({"roots": {"listChanged": True}}, "2024-11-05", {"roots": {"listChanged": True}}),
        ({"extensions": {"io.modelcontextprotocol/tasks": {}}}, "2025-11-25", {}),
    ],
)
def test_abilities_are_what_was_declared_as_far_as_the_revision_has_it(
    declared: dict[str, Any], revision: str, found: dict[str, Any]
) -> None:
    assert abilities(declared, revision) == found


def test_only_a_visit_gets_an_id() -> None:
    assert ask_params("elicitation/create", URL, "2025-11-25", "7") == {
        **URL,
        "elicitationId": "7",
    }
    sample = {"messages": [], "maxTokens": 1}
    assert ask_params("sampling/createMessage", sample, "2025-11-25", "7") == sample


def test_an_output_schema_without_an_object_at_its_root_is_left_out() -> None:
    listed = {"tools": [{"name": "a", "outputSchema": {"type": "array"}}]}
    assert degrade("tools/list", listed, "2025-11-25") == {"tools": [{"name": "a"}]}
    assert listed["tools"][0]["outputSchema"] == {"type": "array"}  # what was given is untouched


def test_audio_becomes_text_in_the_oldest_revision() -> None:
    audio = {"type": "audio", "data": "", "mimeType": "audio/wav"}
    result = {"messages": [{"role": "user", "content": audio}]}
    told = degrade("prompts/get", result, "2024-11-05")
    assert told["messages"][0]["content"] == {"type": "text", "text": "[audio, audio/wav]"}
    assert degrade("prompts/get", result, "2025-03-26") == result


def test_a_handlers_own_meta_is_kept() -> None:
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "x"}, "example.com/a": 1}
    told = degrade("resources/read", {"contents": [], "_meta": meta}, "2025-11-25")
    assert told == {"contents": [], "_meta": {"example.com/a": 1}}


def test_progress_had_no_text_in_the_oldest_revision() -> None:
    params = {"progressToken": 1, "progress": 1, "message": "half"}
    assert notice("notifications/progress", params, "2024-11-05") == {
        "progressToken": 1,
        "progress": 1,
    }
    assert notice("notifications/progress", params, "2025-03-26") == params
