"""Load the client under test once, and fork for each scenario.

    python -m conformance.forking SOCKET

The suite starts some fifty clients at once, and loading the client takes longer than any scenario.
`conformance/forked.py` is what the suite starts instead; it asks this process for a client.
"""

import json
import os
import random
import signal
import socket
import sys
import threading
import traceback

from conformance import client


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(128)
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                run(asked)
            asked.close()


def run(asked: socket.socket) -> None:
    """Be the client for one scenario; ends this process."""
    message, streams, _, _ = socket.recv_fds(asked, 1 << 16, 2)
    if not message:
        os._exit(0)  # somebody looked whether we are here
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    said = json.loads(message)
    os.environ.update(said["environment"])
    sys.argv = [sys.argv[0], *said["arguments"]]
    random.seed()
    threading.Thread(target=end_with, args=(asked,), daemon=True).start()
    code = 1
    try:
        code = client.main()
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    asked.sendall(bytes([code]))
    os._exit(code)


def end_with(asked: socket.socket) -> None:
    """End when the program ends that asked: the suite ends it when a scenario takes too long."""
    asked.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
