"""The same three tools on every server that is measured; each file is a program."""
