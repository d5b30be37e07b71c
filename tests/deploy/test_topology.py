"""The topology of deploy/compose.yaml as processes: PostgreSQL, two servers, nginx before them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from antiphon.seal.keyring import generate_key
from tests.child_processes import environment
from tests.servers import PATIENCE, free_port, postgres, program
from tests.transports.wire import mirrored, request

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
CAN = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
SERVERS = ("server-1", "server-2")


class Topology:
    """The processes, by the names that the file gives them."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder = folder
        self._store = store
        self._keys = generate_key()
        self.ports = {name: free_port() for name in (*SERVERS, "nginx")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._posted = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in SERVERS:
                self._start(stack, name, self._server(name), self._environment(name))
            for name in SERVERS:
                self._await(name)
            self._start(stack, "nginx", self._nginx(), {})
            self._await("nginx")
            yield

    def _environment(self, name: str) -> dict[str, str]:
        """What the file sets, with the addresses of here."""
        service = COMPOSE["services"][name]
        given = {"ANTIPHON_KEYS": self._keys, "ANTIPHON_STORE": self._store}
        assert set(service["environment"]) == set(given)
        return {**given, "HOSTNAME": service["hostname"]}

    def _server(self, name: str) -> list[str]:
        words = [str(word) for word in COMPOSE["services"][name]["command"]]
        words[words.index("/srv/shop.py")] = str(ROOT / "deploy" / "shop.py")
        words[words.index("0.0.0.0:8400")] = f"127.0.0.1:{self.ports[name]}"
        return [sys.executable, "-m", "antiphon.cli.app", *words]

    def _nginx(self) -> list[str]:
        text = (ROOT / "deploy" / "nginx.conf").read_text()
        for name in SERVERS:
            text = text.replace(f"{name}:8400", f"127.0.0.1:{self.ports[name]}")
        text = text.replace("listen 8080;", f"listen 127.0.0.1:{self.ports['nginx']};")
        (self._folder / "nginx.conf").write_text(text)
        return [
            program("nginx"), "-p", str(self._folder), "-c", "nginx.conf", "-e", "stderr",
            "-g", "daemon off; user root;",
        ]  # fmt: skip

    def _start(self, stack: ExitStack, name: str, command: list[str], more: dict[str, str]) -> None:
        log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            command, cwd=self._folder, env=environment({"PYTHONPATH": str(ROOT), **more}),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self.processes[name] = process
        stack.callback(process.wait, PATIENCE)
        stack.callback(process.terminate)

    def _await(self, name: str) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.processes[name].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.ports[name])) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self._folder / f"{name}.log").read_text())

    def kill(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(PATIENCE)

    @property
    def took(self) -> list[str]:
        """Which server took each round, as the log of nginx says: a moment after its answer."""
        names = {str(port): name for name, port in self.ports.items()}
        text, end = "", time.monotonic() + PATIENCE
        while time.monotonic() < end:
            text = (self._folder / "nginx.log").read_text()
            ports = re.findall(r" 200 (?:\S+, )?127\.0\.0\.1:(\d+) ", text)
            if len(ports) == self._posted:
                return [names[port] for port in ports]
            time.sleep(0.02)
        raise AssertionError(f"{self._posted} rounds were answered; the log has\n{text}")

    def post(self, **params: Any) -> dict[str, Any]:
        self._posted += 1
        message = request(name="provision", meta=CAN, arguments={"name": "orders"}, **params)
        headers = {name.decode(): value.decode() for name, value in mirrored(message)}
        headers["host"] = "mcp.example.com"
        answer = httpx2.post(
            f"http://127.0.0.1:{self.ports['nginx']}/mcp",
            json=message,
            headers=headers,
            timeout=PATIENCE,
        )
        return answer.json()["result"]

    def answer(self, reply: dict[str, Any], **answers: Any) -> dict[str, Any]:
        given = {key: {"action": "accept", "content": value} for key, value in answers.items()}
        return self.post(requestState=reply["requestState"], inputResponses=given)


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    folder = tmp_path_factory.mktemp("topology")
    os.chmod(folder, 0o755)
    with postgres() as url:
        running = Topology(folder, url)
        with running.running():
            yield running


def test_the_rounds_of_a_call_go_to_both_servers_and_on_when_one_is_killed(
    topology: Topology,
) -> None:
    for name in SERVERS:
        ready = httpx2.get(f"http://127.0.0.1:{topology.ports[name]}/readyz")
        assert ready.status_code == 200
    asked = topology.post()
    again = topology.answer(asked, size={"gigabytes": 4})
    done = topology.answer(again, approve={"approve": True})
    assert re.fullmatch(
        r"orders-4-\w{8} was created, says server-[12]\.", done["content"][0]["text"]
    )
    assert set(topology.took) == set(SERVERS), "no round depends on who took the one before"
    repeated = topology.answer(again, approve={"approve": True})
    assert repeated["content"] == done["content"], "the same token gets what was recorded"

    asked = topology.post()
    again = topology.answer(asked, size={"gigabytes": 8})
    served = topology.took[-1]
    (left,) = set(SERVERS) - {served}
    topology.kill(served)
    done = topology.answer(again, approve={"approve": True})
    assert done["content"][0]["text"].endswith(f"was created, says {left}.")
    assert topology.took[-1] == left
