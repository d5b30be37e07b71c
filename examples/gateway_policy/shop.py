"""A shop of somebody else, with the official SDK; it asks nobody and knows of no gateway."""

from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("shop", version="3")


def book(line: str) -> None:
    """Write down what happened."""
    with Path("shop.log").open("a") as log:
        log.write(f"{line}\n")


@server.tool()
def find_orders(customer: str) -> str:
    """Find the orders of a customer."""
    return f"{customer} has order 7 and order 8"


@server.tool()
def refund_order(order: str, cents: int) -> str:
    """Pay an order back."""
    book(f"refund {order} {cents}")
    return f"refunded {order}"


@server.tool()
def delete_order(order: str) -> str:
    """Delete an order for good."""
    book(f"delete {order}")
    return f"deleted {order}"


@server.tool()
def export_customers() -> str:
    """Return everything about everybody."""
    book("export")
    return "all of it"


if __name__ == "__main__":
    server.run("stdio")
