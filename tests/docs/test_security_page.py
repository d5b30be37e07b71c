"""Every row of the table in docs/security.md names tests, and each of them exists."""

from pathlib import Path

from tests.docs.test_guarantees_page import NAME, functions

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_security_page_names_exists() -> None:
    assert set(NAME.findall(PAGE)) - functions() == set()


def test_every_row_of_the_threat_table_names_a_test() -> None:
    table = PAGE[PAGE.index("| who | wants |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) >= 12
    assert [row for row in table if not NAME.search(row.rpartition(" | ")[2])] == []
