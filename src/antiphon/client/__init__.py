"""The other half of the conversation: calls a server, answers what it asks. Never imports server.

Nothing is loaded here, so that the plain values can be had without the official SDK:
`antiphon.client.client` loads it, `values`, `answers`, `errors` and `terminal` do not.
"""
