"""The shapes of handlers that are more than a function: steps, resolvers, parked frames."""
