"""Token ids to token ids and text by llmc's executor, in the tensors of TensorRT-LLM's model.

Of what the executor makes, only the outputs that the configuration has are sent.

The executor's threads run the model and hand over responses, which go to Triton from there. One
thread more, `watch`, looks for clients that are gone and publishes metrics.

An engine of several ranks: with launch_mode leader there is a server for each rank, and this model
serves in rank 0's and follows in the others; with orchestrator it starts its ranks itself.
"""

import json
import os
import signal
import threading
import time
import traceback
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from llmc.errors import LlmcError, ServeError, UnavailableError
from llmc.model_repo.mpi import start_ranks
from llmc.runtime import triton_metrics
from llmc.runtime.comm import leave
from llmc.runtime.request import Request, Response
from llmc.runtime.session import open_session
from llmc.runtime.triton_parameters import read_executor_config, read_flag, read_period_seconds
from llmc.runtime.triton_request import RequestDefaults, read_request, response_tensors
from llmc.runtime.worker import join_as_follower

LAST_WORDS_SECONDS = 1.0
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@dataclass(slots=True, eq=False)
class Message:
    """One request of Triton's, which may carry several rows, each a request of the executor's.

    `client_id` is the client's request id, `stop_id` an own one that postprocessing gets to see.
    `num_open` counts the rows without a last response; `refused` says that the client has its
    error.
    """

    sender: Any
    client_id: str
    stop_id: str
    num_rows: int
    num_open: int
    refused: bool = False
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Let nobody ask the sender about its client any more."""
        with self.lock:
            self.closed = True


class TritonPythonModel:
    """Holds the one session; Triton runs exactly one instance of this model."""

    _following: threading.Thread | None = None
    """On a rank other than 0, which has no session."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine; its folder is relative to the repository that holds this model."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._defaults = RequestDefaults(
            exclude_input=read_flag(parameters, "exclude_input_in_output"),
            decoupled=pb_utils.using_decoupled_model_transaction_policy(config),
        )
        self._outputs = {output["name"] for output in config["output"]}
        self._check_period = read_period_seconds(parameters, "cancellation_check_period_ms")
        self._stats_period = read_period_seconds(parameters, "stats_check_period_ms")
        engine_dir = Path(args["model_repository"]).parent / parameters["gpt_model_path"]
        executor = read_executor_config(parameters)
        self._following = join_as_follower(engine_dir, executor.kv, executor.ranks)
        if self._following is not None:
            threading.Thread(target=self._end_after_following, daemon=True).start()
            return
        self._session = open_session(engine_dir, executor, start=start_ranks)
        self._make_metrics({"model": args["model_name"], "version": args["model_version"]})
        self._lock = threading.Lock()
        self._in_flight: dict[int, Message] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    def execute(self, requests: list[Any]) -> None:
        """Enqueue every request or answer it with its error; tokens follow from other threads."""
        for request in requests:
            sender = request.get_response_sender()
            if self._following is not None:
                # A warm-up, which Triton gives to every rank: rank 0's is all ranks'.
                sender.send(flags=FINAL)
                continue
            try:
                self._start(request, sender)
            except LlmcError as error:
                _refuse(sender, error.message, again=isinstance(error, UnavailableError))
            except Exception as error:
                pb_utils.Logger.log_error(traceback.format_exc())
                _refuse(sender, repr(error))

    def finalize(self) -> None:
        """Let what runs finish, then stop."""
        if self._following is not None:
            self._following.join()
            leave()
            return
        self._session.executor.shutdown(drain=True)
        leave()
        self._stopping.set()
        self._watcher.join()

    def _end_after_following(self) -> None:
        """End this rank's server when rank 0 says that all is over."""
        assert self._following is not None
        self._following.join()
        os.kill(os.getppid(), signal.SIGTERM)

    def _start(self, request: Any, sender: Any) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "stop" in inputs and inputs["stop"].any():
            self._stop(request.request_id(), sender)
            return
        num_rows = len(inputs.get("input_ids", ()))
        if num_rows > 1 and not self._defaults.decoupled:
            raise ServeError(f"batch of {num_rows}: an answer each needs serve.decoupled true")
        rows = [
            read_request(inputs, row, defaults=self._defaults, session=self._session)
            for row in range(max(num_rows, 1))
        ]
        stop_id = str(uuid.uuid4())
        message = Message(sender, request.request_id(), stop_id, len(rows), len(rows))
        self._enqueue(rows, message)

    def _enqueue(self, rows: list[Request], message: Message) -> None:
        """Hand over all rows of a message or, where one is refused, none."""
        accepted: list[int] = []
        with self._lock:
            try:
                for row, request in enumerate(rows):
                    request_id = self._session.executor.enqueue(
                        request, partial(self._answer, message, row)
                    )
                    accepted.append(request_id)
                    self._in_flight[request_id] = message
            except LlmcError:
                message.refused = True
                message.close()
                for request_id in accepted:
                    del self._in_flight[request_id]
                    self._session.executor.cancel(request_id)
                raise

    def _answer(self, message: Message, row: int, response: Response) -> None:
        """Give one response of the executor's to Triton; on the executor's dispatch thread."""
        if response.is_final:
            with self._lock:
                self._in_flight.pop(response.request_id, None)
            message.num_open -= 1
            if message.num_open == 0:
                message.close()
            self._input_tokens.observe(response.num_input_tokens)
            self._output_tokens.observe(response.num_output_tokens)
        if message.refused:
            return
        if response.error is not None:
            answer = pb_utils.InferenceResponse(error=_error(response.error, response.is_lost))
        else:
            tensors = response_tensors(response, row=row, num_rows=message.num_rows)
            tensors["STOP_ID"] = np.array([[message.stop_id.encode()]], np.object_)
            answer = pb_utils.InferenceResponse(
                output_tensors=[
                    pb_utils.Tensor(name, array)
                    for name, array in tensors.items()
                    if name in self._outputs
                ]
            )
        message.sender.send(answer, flags=0 if message.num_open else FINAL)

    def _stop(self, given_id: str, sender: Any) -> None:
        """Cancel what was sent with this request id, as TensorRT-LLM's `stop` does."""
        if not given_id:
            raise ServeError("stop: true needs the request id of the request to stop")
        with self._lock:
            ids = [
                request_id
                for request_id, message in self._in_flight.items()
                if given_id in (message.client_id, message.stop_id)
            ]
        for request_id in ids:
            self._session.executor.cancel(request_id)
        sender.send(pb_utils.InferenceResponse(output_tensors=[]), flags=FINAL)

    def _watch(self) -> None:
        next_stats = 0.0
        while not self._stopping.wait(min(self._check_period, self._stats_period)):
            try:
                self._end_with_engine()
                self._cancel_abandoned()
                if time.monotonic() >= next_stats:
                    next_stats = time.monotonic() + self._stats_period
                    self._publish()
            except Exception:
                pb_utils.Logger.log_error(traceback.format_exc())

    def _end_with_engine(self) -> None:
        """End this process when its engine is lost for good: Triton would go on being ready."""
        if self._session.executor.is_failed:
            # Errors are on their way to the clients.
            time.sleep(LAST_WORDS_SECONDS)
            self._session.end_process(self._session.executor.failure or "")

    def _cancel_abandoned(self) -> None:
        """Ask every sender whether its client is gone, but none whose last response was sent.

        Triton frees what that question looks at with the last response, and crashes when it is
        asked afterwards. So a message is closed, under its lock, before its last response is sent.
        """
        with self._lock:
            in_flight = list(self._in_flight.items())
        for request_id, message in in_flight:
            with message.lock:
                gone = not message.closed and message.sender.is_cancelled()
            if gone:
                self._session.executor.cancel(request_id)

    def _make_metrics(self, labels: dict[str, str]) -> None:
        """Create TensorRT-LLM's metric families; Triton shows them on its metrics port."""
        kinds = pb_utils.MetricFamily
        families = {
            name: kinds(name=name, description=description, kind=kinds.GAUGE)
            for name, description in triton_metrics.DESCRIPTIONS.items()
        }
        self._gauges = [
            (gauge, families[gauge.family].Metric(labels={gauge.label: gauge.value, **labels}))
            for gauge in triton_metrics.GAUGES
        ]
        self._published: list[float | None] = [None] * len(self._gauges)
        histograms = (triton_metrics.INPUT_TOKENS, triton_metrics.OUTPUT_TOKENS)
        self._families = list(families.values())
        metrics = []
        for histogram in histograms:
            family = kinds(
                name=histogram.family, description=histogram.description, kind=kinds.HISTOGRAM
            )
            # A family must outlive its metrics.
            self._families.append(family)
            metrics.append(
                family.Metric(
                    labels={"response_metric_type": histogram.value, **labels},
                    buckets=list(triton_metrics.BUCKETS),
                )
            )
        self._input_tokens, self._output_tokens = metrics

    def _publish(self) -> None:
        """Set what has changed since the last time.

        Each set goes through shared memory, whose locks a server without a core to itself can find
        freed: it aborts then (triton-inference-server/server, issue 8882).
        """
        stats = self._session.executor.stats()
        values = [gauge.read(stats) for gauge, _ in self._gauges]
        for (_, metric), value, before in zip(self._gauges, values, self._published, strict=True):
            if value != before:
                metric.set(value)
        self._published = [*values]


def _refuse(sender: Any, message: str, *, again: bool = False) -> None:
    sender.send(pb_utils.InferenceResponse(error=_error(message, again)), flags=FINAL)


def _error(message: str, again: bool) -> Any:
    return pb_utils.TritonError(message + UnavailableError.SIGN if again else message)
