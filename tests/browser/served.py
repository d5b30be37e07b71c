"""The shop as `antiphon serve` and `antiphon console` load it."""

import os

from tests.browser.shop import make_shop

server = make_shop(os.environ)
