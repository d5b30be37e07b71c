"""Where a server is: a URL, a command, an object in this process, or streams."""
