"""Ask for a client that is loaded already: `python conformance/forked.py SOCKET URL`.

Lends it the output of this process and what the suite has put into the environment, and ends as it
does.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as loaded:
    loaded.connect(sys.argv[1])
    given = {name: value for name, value in os.environ.items() if name.startswith("MCP_")}
    asked = json.dumps({"environment": given, "arguments": sys.argv[2:]})
    socket.send_fds(loaded, [asked.encode()], [1, 2])
    code = loaded.recv(1)
sys.exit(code[0] if code else 1)
