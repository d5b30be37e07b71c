"""Programs around a server: console, gateway, `antiphon dev`, lint and doctor."""
