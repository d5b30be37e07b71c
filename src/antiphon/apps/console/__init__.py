"""The web pages on which people decide what calls ask. `antiphon.console` has their settings."""
