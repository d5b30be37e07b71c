"""Running servers and workers as processes."""
