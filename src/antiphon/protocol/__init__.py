"""Values, decisions and messages of the protocol: no I/O, no clock, no randomness."""
