"""What a server is told when TensorRT-LLM's backend starts the ranks of its models itself.

Source: triton-inference-server/tensorrtllm_backend v0.19.0, scripts/launch_triton_server.py
(--multi-model) and model_instance_state.cc, which reads the variables.
"""

from dataclasses import dataclass

ORCHESTRATOR_ENVIRONMENT = {
    "TRTLLM_ORCHESTRATOR": "1",
    "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orchestrator:
    """A server whose ranks own the GPUs: it must not take memory of them for itself."""

    num_gpus: int

    def flags(self) -> list[str]:
        """Return the server's flags."""
        pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(self.num_gpus)]
        return ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools]
