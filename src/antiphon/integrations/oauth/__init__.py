"""OAuth 2.1 for servers: access tokens are verified, and clients are told where to get one."""
