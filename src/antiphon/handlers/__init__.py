"""What authors register, compiled once."""
