"""The way out to the network: the only HTTP client of the framework."""
