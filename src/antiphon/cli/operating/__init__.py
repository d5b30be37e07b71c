"""Commands of those who run servers: calls, audit, inbox, doctor."""
