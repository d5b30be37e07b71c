"""Commands for authors: a new project, the settings of a client, and the developer's console."""
