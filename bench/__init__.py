"""What a round costs: our server against the other implementations and against a bare application.

`make bench` runs it and prints the figures with their goals. Not a test: figures move with the
machine, so that only ratios of one run mean something.
"""
