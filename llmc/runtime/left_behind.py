"""Ending a model's process after its server.

A server that did not stop in its exit timeout leaves behind the processes of models that still wait
for something, and whoever started it, such as MPI's launcher, waits for them.
"""

import os
import threading
import time

from llmc.errors import ServeError

LOOK_SECONDS = 1.0


def end_with_server(who: str) -> None:
    """End this process soon after the server that started it; `who` is what its last line calls it.

    Python's threads must be able to run: not for a process that waits in a library for ever.
    """
    server = os.getppid()

    def run() -> None:
        while os.getppid() == server:
            time.sleep(LOOK_SECONDS)
        os.write(2, f"\nerror: {who} ends: its server ended\n".encode())
        os._exit(ServeError.exit_code)

    threading.Thread(target=run, name="llmc-server", daemon=True).start()
