"""Web pages where people answer what calls ask: the inbox, its login and its notices.

Importing this loads neither the pages nor what they need; `Server.asgi()` does when it was given a
`Console`.
"""

from antiphon.console.login import Login as Login
from antiphon.console.login import OneTimeLink as OneTimeLink
from antiphon.console.oidc import OIDC as OIDC
from antiphon.console.settings import Console as Console
from antiphon.console.settings import Webhook as Webhook
from antiphon.core.inbox import Person as Person
