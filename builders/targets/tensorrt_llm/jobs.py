"""The GPU half of a build as files: build.sh, and a job for GitHub Actions and GitLab CI to run it.

build.sh checks what it was given and where it runs before it builds: the checkpoint's digests, the
version of TensorRT-LLM, the GPUs' number and compute capability.
"""

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from llmc import artifacts
from llmc.tensorrt_llm_versions import Version

ARTIFACT = "llmc-build"
"""Name under which a pipeline uploads `checkpoint` and `gpu_build`."""

_SCRIPT = """\
#!/usr/bin/env bash
# Builds the engine of TensorRT-LLM {line} for GPUs of compute capability {capability}.
# Usage: build.sh CHECKPOINT ENGINE, in {container} or where that version is installed.
set -euo pipefail
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
checkpoint=${{1:?usage: build.sh CHECKPOINT ENGINE}}
engine=${{2:?usage: build.sh CHECKPOINT ENGINE}}

fail() {{
    printf 'error: %s\\n' "$1" >&2
    exit "$2"
}}

(cd "$checkpoint" && sha256sum --check --quiet "$here/checkpoint.sha256") ||
    fail "$checkpoint: not the checkpoint this job was made for" 3

version=$(python3 -c 'import importlib.metadata as m; print(m.version("tensorrt-llm"))') ||
    fail "no TensorRT-LLM; run this in {container}" 5
case "$version" in
{line}.*) ;;
*) fail "TensorRT-LLM $version, expected {line}; run this in {container}" 5 ;;
esac
tensorrt=$(python3 -c 'import tensorrt; print(tensorrt.__version__)') ||
    fail "no TensorRT; run this in {container}" 5

gpus=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader) || fail "no GPU" 5
[ "$(wc -l <<<"$gpus")" -ge {workers} ] ||
    fail "$(wc -l <<<"$gpus") GPUs, and {workers} ranks are built at once" 5
while IFS=, read -r name capability; do
    [ "$(tr -d ' .' <<<"$capability")" = {capability} ] ||
        fail "$name has compute capability$capability, the engine is for {capability}" 5
done <<<"$gpus"

rm -rf "$engine.part"
{command}
(cd "$checkpoint" && cp -- {tokenizer} "$engine.part"/)
job=$(cd "$here" && sha256sum build.sh checkpoint.sha256 | sha256sum | cut -d ' ' -f 1)
{{
    printf '{{"tensorrt_llm": "%s", "tensorrt": "%s", ' "$version" "$tensorrt"
    printf '"gpu": "%s", ' "$(head -n 1 <<<"$gpus" | cut -d , -f 1)"
    printf '"compute_capability": %s, "job": "%s"}}\\n' {capability} "$job"
}} >"$engine.part/build.json"
rm -rf "$engine"
mv "$engine.part" "$engine"
"""

_GITHUB = """\
# The GPU half of a build: takes the artifact {artifact} (checkpoint and gpu_build) of a run.
# With its artifact `engine` in out/engine, the same `llmc build` measures it and emits.
name: engine
on:
  workflow_dispatch:
    inputs:
      run-id:
        description: Run that uploaded {artifact}
        required: true
        type: string
  workflow_call:
    inputs:
      run-id:
        description: Run that uploaded {artifact}
        required: true
        type: string
permissions:
  actions: read
  contents: read
jobs:
  engine:
    runs-on: [self-hosted, linux, gpu]
    timeout-minutes: 240
    container:
      image: {container}
      options: --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864
    steps:
      - uses: actions/download-artifact@v4
        with:
          name: {artifact}
          path: out
          run-id: ${{{{ inputs.run-id }}}}
          github-token: ${{{{ github.token }}}}
      - name: Build the engine
        run: bash out/gpu_build/build.sh out/checkpoint out/engine
      - uses: actions/upload-artifact@v4
        with:
          name: engine
          path: out/engine
          if-no-files-found: error
"""

_GITLAB = """\
# The GPU half of a build: include it in a pipeline whose job `checkpoint` leaves out/checkpoint and
# out/gpu_build as artifacts. With its out/engine, the same `llmc build` measures it and emits.
engine:
  image:
    name: {container}
    entrypoint: [""]
  tags: [gpu]
  needs:
    - job: checkpoint
      artifacts: true
  timeout: 4h
  script:
    - bash out/gpu_build/build.sh out/checkpoint out/engine
  artifacts:
    paths:
      - out/engine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is built where. `digests`: file of the checkpoint → SHA-256."""

    version: Version
    capability: int
    workers: int
    command: list[str]
    digests: dict[str, str]
    tokenizer_files: list[str]


def job_files(job: Job) -> dict[str, str]:
    """Return the files of the job, by name."""
    container = job.version.container
    words = {
        "line": job.version.line,
        "container": container,
        "capability": job.capability,
        "workers": job.workers,
        "command": _shell(job.command),
        "tokenizer": shlex.join(job.tokenizer_files),
        "artifact": ARTIFACT,
    }
    lines = [f"{digest}  {name}\n" for name, digest in sorted(job.digests.items())]
    described = {
        "container": container,
        "triton_container": job.version.triton_container,
        "compute_capability": job.capability,
        "command": job.command,
    }
    return {
        "build.sh": _SCRIPT.format(**words),
        "checkpoint.sha256": "".join(lines),
        "github-actions.yml": _GITHUB.format(**words),
        "gitlab-ci.yml": _GITLAB.format(**words),
        "job.json": json.dumps(described, indent=4) + "\n",
    }


def job_id(job_dir: Path) -> str:
    """Return the digest that build.sh stamps its engines with: of itself and of its checkpoint."""
    lines = [
        f"{artifacts.digest_file(job_dir / name)}  {name}\n"
        for name in ("build.sh", "checkpoint.sha256")
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _shell(command: list[str]) -> str:
    """Return the command as build.sh has it: its first two paths are the script's arguments."""
    paths = {"CHECKPOINT": '"$checkpoint"', "ENGINE": '"$engine.part"'}
    words = [paths.get(word) or shlex.quote(word) for word in command]
    starts = [index for index, word in enumerate(words) if word.startswith("--")] + [len(words)]
    parts = [" ".join(words[: starts[0]])]
    parts += [" ".join(words[a:b]) for a, b in zip(starts, starts[1:], strict=False)]
    return " \\\n    ".join(parts)
