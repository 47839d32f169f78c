"""An MPIJob of Kubeflow's mpi-operator, and a service in front of its launcher.

Source: kubeflow/mpi-operator, manifests/base/kubeflow.org_mpijobs.yaml (v2beta1). The launcher is
a worker, too: rank 0 runs in it, and the probes find it there.
"""

from llmc.model_repo.deploy import pods
from llmc.model_repo.deploy.deployment import Deployment
from llmc.model_repo.launchers import FLAVOURS

HOSTFILE = "/etc/mpi/hostfile"
"""Where the operator puts it."""
_IMPLEMENTATIONS = {"Open MPI": "OpenMPI", "MPICH": "MPICH"}


def write(deployment: Deployment) -> dict[str, str]:
    """Return <name>.mpijob.yaml."""
    library = FLAVOURS[deployment.launcher].libraries[0]
    command = deployment.serve_command(hostfile=HOSTFILE if deployment.is_job else None)
    launcher = pods.serving_pod(deployment, command)
    replicas: pods.Object = {
        "Launcher": {"replicas": 1, "restartPolicy": "OnFailure", "template": launcher}
    }
    if deployment.num_hosts > 1:
        sshd = ["/usr/sbin/sshd", "-De"]
        replicas["Worker"] = {
            "replicas": deployment.num_hosts - 1,
            "restartPolicy": "OnFailure",
            "template": pods.ranks_pod(deployment, sshd),
        }
    job: pods.Object = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": pods.metadata(deployment),
        "spec": {
            "mpiImplementation": _IMPLEMENTATIONS[library],
            "slotsPerWorker": min(deployment.ranks_per_host, deployment.world_size),
            "runLauncherAsWorker": True,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": replicas,
        },
    }
    selector = {
        "training.kubeflow.org/job-name": deployment.name,
        "training.kubeflow.org/job-role": "launcher",
    }
    comment = (
        f"{deployment.size}; needs mpi-operator 0.6 or newer\n"
        f"The image has llmc, tritonserver, {FLAVOURS[deployment.launcher].title} and sshd."
    )
    text = pods.to_yaml(comment, job, pods.service(deployment, selector))
    return {f"{deployment.name}.mpijob.yaml": text}
