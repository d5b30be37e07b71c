"""Other people's clients, driven against one server, and the page that shows what came of it."""
