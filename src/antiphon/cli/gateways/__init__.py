"""`antiphon gateway`, and the files that describe a gateway."""
