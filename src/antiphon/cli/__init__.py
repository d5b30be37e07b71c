"""The command line: each command is parse, one library call, print. Nothing heavy on import."""
