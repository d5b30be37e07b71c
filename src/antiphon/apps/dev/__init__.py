"""The developer's console: a server in a child process, driven and watched from this one.

The parent holds the keys and the store and talks to the child as any client does. What the child
writes besides is one file of records: which lines of the author's code ran in which round.
"""
