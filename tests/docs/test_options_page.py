"""docs/options.md is written from the typed options, and none is without a line on it."""

from pathlib import Path

from antiphon.handlers import options
from tests.docs.options import SECTIONS, explained, page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_written_from_the_code():
    assert (DOCS / "options.md").read_text("utf-8") == page(), (
        "run: python -m tests.docs.options > docs/options.md"
    )


def test_every_option_of_every_decorator_is_explained():
    classes = explained()
    shown = {option for _, name in SECTIONS for option in classes[name]}
    for takes in (options.ToolOptions, options.PromptOptions, options.ResourceOptions):
        assert takes.__optional_keys__ <= shown
    assert options.FlowOptions.__optional_keys__ <= options.ToolOptions.__optional_keys__
    unsaid = [
        option for _, name in SECTIONS for option, (_, text) in classes[name].items() if not text
    ]
    assert unsaid == []
