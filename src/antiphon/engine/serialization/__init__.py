"""Values, exceptions and arguments as JSON, so that every execution sees the same."""
