"""Values and decisions. No await, clock, randomness, cryptography or logging."""
