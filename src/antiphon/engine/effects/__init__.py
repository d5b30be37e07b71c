"""What a handler does once, however often it runs."""
