"""Values and decisions. No await, clock, dice, crypto or logging; knows nothing outside."""
