"""`antiphon doctor`: what is wrong with a server and where it runs, before its callers find out."""
