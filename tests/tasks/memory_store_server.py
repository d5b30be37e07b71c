"""A server whose store no worker can see."""

from antiphon import Server

server = Server("alone")
