"""A server of Restate, on ports of its own; it talks to nobody else."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.child_processes import ROOT
from tests.servers import PATIENCE, Engine, free_port

PACKAGES = ROOT / ".peers" / "restate" / "node_modules" / "@restatedev"
SETTINGS = """
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {fabric}
base-dir = "{folder}"
default-num-partitions = 1
disable-telemetry = true
disable-prometheus = true

[admin]
bind-port = {admin}
disable-web-ui = true

[ingress]
bind-port = {ingress}
"""


@dataclass(frozen=True)
class Restate:
    """Where to call workflows, and where to register them."""

    ingress: str
    admin: str

    def register(self, url: str) -> None:
        """Make the workflows at a URL known; the server and the workflows may still be starting."""
        end = time.monotonic() + PATIENCE
        told = ""
        while time.monotonic() < end:
            try:
                reply = httpx2.post(
                    f"{self.admin}/deployments", json={"uri": url}, timeout=PATIENCE
                )
            except httpx2.HTTPError as error:
                told = str(error)
            else:
                if reply.is_success:
                    return
                told = reply.text
            time.sleep(0.1)
        raise RuntimeError(f"the workflows could not be registered: {told}")


@contextmanager
def restate() -> Iterator[Restate]:
    """Start the server until the block ends."""
    [program] = PACKAGES.glob("restate-server-*/bin/restate-server")
    prefix = "antiphon-restate-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        ports = {name: free_port() for name in ("fabric", "admin", "ingress")}
        file = Path(folder) / "restate.toml"
        file.write_text(SETTINGS.format(folder=folder, **ports))
        engine = Engine([str(program), "--config-file", str(file)], "", ports["ingress"])
        try:
            engine.start()
            yield Restate(*(f"http://127.0.0.1:{ports[name]}" for name in ("ingress", "admin")))
        finally:
            engine.kill()
