"""Values and decisions. No await, no clock, no dice, no crypto, no logging; knows nothing outside."""
