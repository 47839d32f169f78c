"""A batch script for Slurm, which starts the ranks itself and ends whatever is left of a job."""

from llmc.model_repo.deploy.deployment import Deployment
from llmc.model_repo.deploy.mpirun import script
from llmc.model_repo.launchers import Launcher, command_line


def write(deployment: Deployment) -> dict[str, str]:
    """Return <name>.sbatch. The batch host is the first of the allocation, and rank 0's."""
    ranks_per_host = min(deployment.ranks_per_host, deployment.world_size)
    options = [
        f"--job-name={deployment.name}",
        f"--nodes={deployment.num_hosts}",
        f"--ntasks-per-node={ranks_per_host}",
        f"--output={deployment.name}-%j.log",
    ]
    if deployment.uses_gpus:
        options.append(f"--gpus-per-node={ranks_per_host}")
    setup = []
    if deployment.cpus_per_rank is not None:
        options.append(f"--cpus-per-task={deployment.cpus_per_rank}")
        # Since Slurm 22.05 srun does not take it from the job.
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")
    if deployment.is_job:
        launcher = Launcher(binary="srun", flavour=deployment.slurm_launcher)
        command = command_line(launcher, deployment.job())
        # The shell of each rank looks at its number, not this one.
        setup.append("# shellcheck disable=SC2016")
    else:
        command = deployment.serve_command(hostfile=None)
    text = script(deployment, command, setup=setup)
    head, _, rest = text.partition("\n")
    directives = "".join(f"#SBATCH {option}\n" for option in options)
    return {f"{deployment.name}.sbatch": f"{head}\n{directives}{rest}"}
