"""The world outside: transports and the older wire. Each file knows one of them."""
