"""An HTTP API of orders, as somebody else wrote it: it knows nothing of MCP.

Prints its port. What it was asked is appended to the file `EVENTS`, one line of JSON each.
"""

import asyncio
import json
import os
import socket
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

orders = {"7": {"id": "7", "item": "tea", "amount": 2}}


async def noted(request: Request) -> Response | None:
    """Write a request down; refuse whoever has no key."""
    line = {
        "request": f"{request.method} {request.url.path}",
        "query": request.url.query,
        "body": (await request.body()).decode(),
        "headers": sorted(request.headers),
    }
    with Path(os.environ["EVENTS"]).open("a") as events:  # noqa: ASYNC230 - a line
        events.write(json.dumps(line) + "\n")
    if request.headers.get("x-api-key") != "secret":
        return JSONResponse({"error": "no key"}, 401)
    return None


async def find(request: Request) -> Response:
    if refused := await noted(request):
        return refused
    wanted = request.query_params.getlist("item")
    return JSONResponse([one for one in orders.values() if not wanted or one["item"] in wanted])


async def place(request: Request) -> Response:
    if refused := await noted(request):
        return refused
    body = await request.json()
    order = {"id": str(len(orders) + 7), **body, "surprise": "not in the document"}
    orders[order["id"]] = order
    return JSONResponse(order, 201)


async def one(request: Request) -> Response:
    if refused := await noted(request):
        return refused
    id = request.path_params["id"]
    if id not in orders:
        return JSONResponse({"error": f"no order {id}"}, 404)
    if request.method == "DELETE":
        del orders[id]
        return Response(status_code=204)
    return JSONResponse(orders[id])


async def slow(request: Request) -> Response:
    await noted(request)
    await asyncio.sleep(30)
    return PlainTextResponse("late")


app = Starlette(
    routes=[
        Route("/v1/orders", find, methods=["GET"]),
        Route("/v1/orders", place, methods=["POST"]),
        Route("/v1/orders/{id}", one, methods=["GET", "DELETE"]),
        Route("/v1/slow", slow, methods=["POST"]),
    ]
)

if __name__ == "__main__":
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])
