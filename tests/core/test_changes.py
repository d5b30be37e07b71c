"""The bus of changes: who is told of what, and for how long."""

from antiphon.protocol.changes import RESOURCE, TOOLS, Change, Changes


def test_every_subscriber_gets_every_change_in_order() -> None:
    changes = Changes()
    first: list[Change] = []
    second: list[Change] = []
    changes.subscribe(first.append)
    changes.subscribe(second.append)
    changes.announce(TOOLS)
    changes.announce(RESOURCE, "shop://orders")
    assert first == second == [Change(TOOLS), Change(RESOURCE, "shop://orders")]


def test_what_another_process_announced_is_not_announced_back_to_it() -> None:
    changes = Changes()
    here: list[Change] = []
    link: list[Change] = []
    changes.subscribe(here.append)
    changes.subscribe(link.append, local_only=True)
    changes.announce_remote(Change(TOOLS))
    changes.announce(RESOURCE, "shop://orders")
    assert here == [Change(TOOLS), Change(RESOURCE, "shop://orders")]
    assert link == [Change(RESOURCE, "shop://orders")]


def test_a_subscriber_that_left_is_called_no_more_even_if_it_leaves_while_called() -> None:
    changes = Changes()
    heard: list[Change] = []

    def once(change: Change) -> None:
        heard.append(change)
        leave()

    leave = changes.subscribe(once)
    other: list[Change] = []
    changes.subscribe(other.append)
    changes.announce(TOOLS)
    changes.announce(TOOLS)
    leave()
    assert (len(heard), len(other)) == (1, 2)
