"""Probes of `antiphon serve`, in a process of its own."""

from pathlib import Path
from urllib.parse import urljoin

from tests.processes.running import fresh, ready


async def test_every_worker_answers_probes_beside_the_endpoint(tmp_path: Path) -> None:
    async with ready(2, folder=tmp_path) as running, fresh() as http:
        for _ in range(4):
            for path, text in (("/healthz", "ok"), ("/readyz", "ready")):
                answer = await http.get(urljoin(running.url, path))
                assert (answer.status_code, answer.text) == (200, text)
        assert (await http.get(urljoin(running.url, "/other"))).status_code == 404
