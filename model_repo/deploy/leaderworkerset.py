"""A LeaderWorkerSet, and a service in front of its leaders; each replica is a whole model.

Source: kubernetes-sigs/lws, config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml (v1)
and api/leaderworkerset/v1 for the variables its pods get. The operator sets up no ssh: the key
pair is a secret, <name>-ssh, of the type kubernetes.io/ssh-auth with its public half beside it.
"""

from llmc.model_repo.deploy import pods
from llmc.model_repo.deploy.deployment import Deployment
from llmc.model_repo.launchers import FLAVOURS

HOSTFILE = "/tmp/hostfile"
_KEYS = "/etc/llmc-ssh"

_AS_WORKER = f"""\
set -eu
mkdir -p /run/sshd /root/.ssh
cp {_KEYS}/ssh-publickey /root/.ssh/authorized_keys
ssh-keygen -A
exec /usr/sbin/sshd -De"""

# The leader's name is NAME-GROUP, its workers' are NAME-GROUP-1 and so on, in the same domain.
_AS_LEADER = """\
set -eu
pod=${{LWS_LEADER_ADDRESS%%.*}} domain=${{LWS_LEADER_ADDRESS#*.}}
mkdir -p /root/.ssh
install -m 600 {keys}/ssh-privatekey /root/.ssh/id_llmc
printf 'Host *\\n IdentityFile /root/.ssh/id_llmc\\n StrictHostKeyChecking accept-new\\n' \\
  > /root/.ssh/config
echo "{own_line}" > {hostfile}
worker=1
while [ "$worker" -lt "$LWS_GROUP_SIZE" ]; do
  host=$pod-$worker.$domain
  until ssh -o ConnectTimeout=2 "$host" true; do sleep 1; done
  echo "{worker_line}" >> {hostfile}
  worker=$((worker + 1))
done
exec {serve}"""


def write(deployment: Deployment) -> dict[str, str]:
    """Return <name>.lws.yaml."""
    template: pods.Object = {"size": deployment.num_hosts}
    template["restartPolicy"] = "RecreateGroupOnPodRestart"
    needs = "The image has llmc and tritonserver."
    if deployment.num_hosts == 1:
        command = deployment.serve_command(hostfile=None)
        template["workerTemplate"] = pods.serving_pod(deployment, command)
    else:
        template["leaderTemplate"] = _with_keys(
            deployment, pods.serving_pod(deployment, ["sh", "-c", _leader_script(deployment)])
        )
        template["workerTemplate"] = _with_keys(
            deployment, pods.ranks_pod(deployment, ["sh", "-c", _AS_WORKER])
        )
        title = FLAVOURS[deployment.launcher].title
        needs = (
            f"The image has llmc, tritonserver, {title}, ssh and sshd. Once before:\n"
            f"  ssh-keygen -q -N '' -f key && kubectl -n {deployment.namespace} create secret"
            f" generic {deployment.name}-ssh \\\n"
            "    --from-file=ssh-privatekey=key --from-file=ssh-publickey=key.pub && rm key key.pub"
        )
    workers: pods.Object = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": pods.metadata(deployment),
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }
    selector = {
        "leaderworkerset.sigs.k8s.io/name": deployment.name,
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    comment = f"{deployment.size}\n{needs}"
    text = pods.to_yaml(comment, workers, pods.service(deployment, selector))
    return {f"{deployment.name}.lws.yaml": text}


def _leader_script(deployment: Deployment) -> str:
    line = FLAVOURS[deployment.launcher].hostfile_line
    return _AS_LEADER.format(
        keys=_KEYS,
        hostfile=HOSTFILE,
        own_line=line.format(host="$LWS_LEADER_ADDRESS", slots=deployment.ranks_per_host),
        worker_line=line.format(host="$host", slots=deployment.ranks_per_host),
        serve=" ".join(deployment.serve_command(hostfile=HOSTFILE)),
    )


def _with_keys(deployment: Deployment, template: pods.PodTemplate) -> pods.PodTemplate:
    spec = template["spec"]
    secret = {"secretName": f"{deployment.name}-ssh", "defaultMode": 0o400}
    spec["volumes"].append({"name": "ssh", "secret": secret})
    for container in spec["containers"]:
        container["volumeMounts"].append({"name": "ssh", "mountPath": _KEYS, "readOnly": True})
    return template
