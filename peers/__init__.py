"""Other implementations of the protocol that the tests, the benchmarks and a page talk to."""
