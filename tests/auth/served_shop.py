"""The shop as a module, for `antiphon serve`; its issuer is named by the environment."""

import os
from typing import Any

from tests.auth.issuer import Issuer
from tests.auth.shop import shop

settings: dict[str, Any] = {"store": os.environ["SHOP_STORE"]}
server = shop(Issuer(os.environ["SHOP_ISSUER"]), **settings)
