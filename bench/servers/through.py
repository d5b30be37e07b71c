"""A gateway as `antiphon gateway` makes it: a server of ours with another one behind, at a URL."""

import asyncio
import sys

import uvloop

from antiphon import Server
from antiphon.transports.processes.http_server import serve_http
from bench.servers.ours import print_port

server = Server("gateway", store="memory:")

if __name__ == "__main__":
    server.mount(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_http(server.asgi(), port=0, announce=print_port))
