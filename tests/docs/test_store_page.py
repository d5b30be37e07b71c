"""The page on stores: every spelling makes a server, and the contracts run on anybody's store."""

from docs_src.my_store import another_handle_of_it as another_handle_of_it
from docs_src.my_store import my_store as my_store
from docs_src.my_store import test_my_store as test_my_store
from docs_src.stores import every_store


def test_every_spelling_of_the_page_names_a_store() -> None:
    kinds = [type(server._services.store).__name__ for server in every_store()]
    expected = ["SqliteStore", "SqliteStore", "PostgresStore", "RedisStore", "MemoryStore"]
    assert kinds == expected
