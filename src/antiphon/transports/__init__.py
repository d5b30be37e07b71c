"""HTTP, stdio and sessions of older revisions."""
