"""Run `client` under gevent, which must patch the standard library before other imports."""

from gevent import monkey

monkey.patch_all()

import socket  # noqa: E402
import sys  # noqa: E402

from tests.faults import client  # noqa: E402

client.main(socket.socket(fileno=int(sys.argv[1])))
