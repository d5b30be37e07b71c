"""The fixture server as an application that granian can load by name."""

from conformance.server import server

app = server.asgi()
