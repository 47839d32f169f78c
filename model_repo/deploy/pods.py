"""What the pods of every kind have in common: containers, probes, volumes, the service.

The dictionaries are Kubernetes' core/v1 objects, typed as far as they are used here.
"""

from typing import Any, Literal, NotRequired, TypedDict

import yaml

from llmc.model_repo.deploy.deployment import GRPC_PORT, HTTP_PORT, METRICS_PORT, Deployment

PORTS = {"http": HTTP_PORT, "grpc": GRPC_PORT, "metrics": METRICS_PORT}
SSH_PORT = 22
PROBE_SECONDS = 10

Object = dict[str, Any]
"""An object of a custom resource, whose schema the tests have."""


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks of lines, and everything where it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class EnvVar(TypedDict):
    name: str
    valueFrom: dict[Literal["secretKeyRef", "fieldRef"], dict[str, str]]


class Container(TypedDict):
    name: str
    image: str
    command: list[str]
    ports: list[dict[str, str | int]]
    resources: dict[Literal["limits", "requests"], dict[str, str]]
    volumeMounts: list[dict[str, str | bool]]
    env: NotRequired[list[EnvVar]]
    startupProbe: NotRequired[Object]
    readinessProbe: NotRequired[Object]
    livenessProbe: NotRequired[Object]


class PodSpec(TypedDict):
    containers: list[Container]
    volumes: list[Object]
    terminationGracePeriodSeconds: int
    imagePullSecrets: NotRequired[list[dict[str, str]]]
    restartPolicy: NotRequired[str]


class PodTemplate(TypedDict):
    metadata: dict[str, dict[str, str]]
    spec: PodSpec


def serving_pod(deployment: Deployment, command: list[str]) -> PodTemplate:
    """Return the pod of rank 0: it is ready when every model is."""
    container = _container(deployment, "server", command)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in PORTS.items()]
    ready = {"httpGet": {"path": "/v2/health/ready", "port": "http"}}
    period = {"periodSeconds": PROBE_SECONDS, "timeoutSeconds": 5}
    failures = -(-deployment.time_limit_s // PROBE_SECONDS)
    container["startupProbe"] = ready | period | {"failureThreshold": failures}
    container["readinessProbe"] = ready | period
    live = {"httpGet": {"path": "/v2/health/live", "port": "http"}}
    container["livenessProbe"] = live | period | {"failureThreshold": 6}
    return _template(deployment, container, role="server")


def ranks_pod(deployment: Deployment, command: list[str]) -> PodTemplate:
    """Return a pod that waits for rank 0's launcher to start ranks in it by ssh."""
    container = _container(deployment, "ranks", command)
    container["ports"] = [{"name": "ssh", "containerPort": SSH_PORT}]
    container["readinessProbe"] = {"tcpSocket": {"port": "ssh"}, "periodSeconds": PROBE_SECONDS}
    return _template(deployment, container, role="ranks")


def service(deployment: Deployment, selector: dict[str, str]) -> Object:
    """Return the service in front of rank 0's pods."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(deployment),
        "spec": {
            "selector": selector,
            "ports": [
                {"name": name, "port": port, "targetPort": name} for name, port in PORTS.items()
            ],
        },
    }


def metadata(deployment: Deployment) -> Object:
    """Return name, namespace and labels of every object."""
    labels = {"app.kubernetes.io/name": deployment.name, "app.kubernetes.io/managed-by": "llmc"}
    return {"name": deployment.name, "namespace": deployment.namespace, "labels": labels}


def to_yaml(comment: str, *objects: Object) -> str:
    """Return one YAML document per object under a comment."""
    documents = [yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=100) for item in objects]
    return "".join(f"# {line}\n" for line in comment.splitlines()) + "---\n".join(documents)


def _container(deployment: Deployment, name: str, command: list[str]) -> Container:
    ranks = min(deployment.ranks_per_host, deployment.world_size)
    limits: dict[str, str] = {}
    if deployment.uses_gpus:
        limits["nvidia.com/gpu"] = str(ranks)
    requests = dict(limits)
    if deployment.cpus_per_rank is not None:
        requests["cpu"] = str(ranks * deployment.cpus_per_rank)
    container: Container = {
        "name": name,
        "image": deployment.image,
        "command": command,
        "ports": [],
        "resources": {"limits": limits, "requests": requests},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": str(deployment.repository.parent), "readOnly": True},
        ],
    }
    if deployment.secrets:
        container["env"] = [
            {
                "name": item.name,
                "valueFrom": {"secretKeyRef": {"name": item.secret, "key": item.key}},
            }
            for item in deployment.secrets
        ]
    return container


def _template(deployment: Deployment, container: Container, *, role: str) -> PodTemplate:
    spec: PodSpec = {
        "containers": [container],
        "volumes": [
            {
                "name": "shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{deployment.shm_gib}Gi"},
            },
            {
                "name": "models",
                "persistentVolumeClaim": {"claimName": deployment.claim, "readOnly": True},
            },
        ],
        "terminationGracePeriodSeconds": 60,
    }
    if deployment.image_pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": deployment.image_pull_secret}]
    labels = {"app.kubernetes.io/name": deployment.name, "llmc/role": role}
    return {"metadata": {"labels": labels}, "spec": spec}
