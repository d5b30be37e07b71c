"""Other servers behind an Antiphon server: `server.mount(...)` and `antiphon gateway`.

A call that is passed on is a handler of ours. Each round of a modern server is one effect: its
token and what it asks are in our journal, sealed in our token, and the asks are put to our client
as they are. A legacy server asks in the middle of an open request, so that the handler is parked
with the request open. What a lost reply leaves open is `EffectUncertain`, never a second call.
"""
