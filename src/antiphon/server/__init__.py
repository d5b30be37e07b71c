"""`Server`: what authors write against."""

from antiphon.server.server import Server as Server
