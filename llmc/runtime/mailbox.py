"""Responses waiting to be fetched by the threads that asked for them."""

import threading

from llmc.errors import ServeError
from llmc.runtime.request import Response


class Mailbox:
    """One box per request, opened when it is accepted, gone once its last response was taken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._boxes: dict[int, list[Response]] = {}
        self._closed = False

    def open(self, request_id: int) -> None:
        with self._changed:
            self._boxes[request_id] = []

    def put(self, response: Response) -> bool:
        """Store a response; False when its request has no box."""
        with self._changed:
            box = self._boxes.get(response.request_id)
            if box is None:
                return False
            box.append(response)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Say that no more responses will come: nobody waits any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, request_id: int | None, timeout: float | None) -> list[Response]:
        """Wait at most `timeout` seconds for responses of one request, or of any; take them all.

        Raises: ServeError when there is no box `request_id`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has(request_id), timeout)
            wanted = list(self._boxes) if request_id is None else [request_id]
            return [response for wanted_id in wanted for response in self._empty(wanted_id)]

    def _has(self, request_id: int | None) -> bool:
        if request_id is None:
            return any(self._boxes.values())
        if request_id not in self._boxes:
            raise ServeError(f"request {request_id} is unknown, or its last response was taken")
        return bool(self._boxes[request_id])

    def _empty(self, request_id: int) -> list[Response]:
        box = self._boxes.get(request_id)
        if box is None:
            raise ServeError(f"request {request_id} is unknown, or its last response was taken")
        if box and box[-1].is_final:
            del self._boxes[request_id]
        else:
            self._boxes[request_id] = []
        return box
