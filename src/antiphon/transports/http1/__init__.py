"""An HTTP/1.1 server for ASGI applications: bounded, strict, on asyncio or uvloop."""
