"""`llmc deploy`: a model repository for other machines, as scripts and manifests."""

from pathlib import Path
from typing import Annotated, Any

import typer


def deploy(
    source: Annotated[
        str,
        typer.Argument(metavar="RECIPE_OR_REPOSITORY", help="Recipe, or an OUT/model_repo."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to write.")
    ],
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", help="mpirun, slurm, leaderworkerset or mpijob; repeatable. Default: all."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of every object and job.")] = "llmc",
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.")] = "default",
    repository: Annotated[
        Path, typer.Option(help="Where every host finds the repository, the engine beside it.")
    ] = Path("/models/model_repo"),
    claim: Annotated[
        str, typer.Option(help="PersistentVolumeClaim mounted at the repository's parent.")
    ] = "models",
    image: Annotated[
        str, typer.Option(help="Container image with llmc and tritonserver.")
    ] = "llmc:latest",
    image_pull_secret: Annotated[
        str | None, typer.Option(metavar="SECRET", help="Secret to pull the image with.")
    ] = None,
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME=SECRET:KEY",
            help="Variable from a key of a Kubernetes secret; scripts expect it set. Repeatable.",
        ),
    ] = None,
    ranks_per_host: Annotated[
        int, typer.Option(min=1, help="Most ranks, and GPUs, of a host or pod.")
    ] = 8,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host for the hostfile, the serving one first; repeatable."),
    ] = None,
    cpus_per_rank: Annotated[
        int | None, typer.Option(min=1, help="CPU cores asked for, per rank.")
    ] = None,
    shm_gib: Annotated[int, typer.Option(min=1, help="Shared memory of a pod, in GiB.")] = 8,
    launcher: Annotated[
        str, typer.Option(help="mpirun of the hosts: openmpi4, openmpi5 or mpich.")
    ] = "openmpi5",
    slurm_launcher: Annotated[
        str, typer.Option(help="srun's side: slurm (PMIx) or slurm_pmi2 (for MPICH).")
    ] = "slurm",
    timeout: Annotated[int, typer.Option(min=1, help="Seconds until it must be ready.")] = 600,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a field of the recipe; repeatable."),
    ] = None,
) -> None:
    """Write what runs a model repository on other machines.

    A hostfile and an mpirun script, a Slurm batch script, and Kubernetes manifests for a
    LeaderWorkerSet and an MPIJob, each with a service. Nothing is started or contacted. Ranks and
    GPUs are the engine's; a cpu engine asks for no GPU. No value of a secret is read or written.

    Examples:

      llmc deploy OUT/model_repo -o deploy --image registry.example/llmc:1 --namespace chat

      llmc deploy recipe.yaml -o deploy --kind mpirun --host node1 --host node2 --ranks-per-host 4
    """
    from llmc.model_repo.deploy import KINDS
    from llmc.model_repo.deploy.deployment import Deployment, SecretVariable
    from llmc.model_repo.deploy.emit import emit_deployment

    deployment = Deployment(
        name=name,
        namespace=namespace,
        repository=repository,
        ranks_per_host=ranks_per_host,
        hosts=tuple(hosts or ()),
        launcher=launcher,
        slurm_launcher=slurm_launcher,
        cpus_per_rank=cpus_per_rank,
        image=image,
        claim=claim,
        shm_gib=shm_gib,
        secrets=tuple(map(SecretVariable.parse, secrets or ())),
        image_pull_secret=image_pull_secret,
        time_limit_s=timeout,
        **_engine_fields(source, settings or []),
    )
    done = emit_deployment(deployment, list(dict.fromkeys(kinds or KINDS)), output)
    for file in sorted(done.manifest.files):
        typer.echo(output / file)


def _engine_fields(source: str, settings: list[str]) -> dict[str, Any]:
    from llmc.cli.build import FLAGS, read_source
    from llmc.errors import RecipeError
    from llmc.model_repo.deploy.emit import read_recipe, read_repository
    from llmc.model_repo.pbtxt import CONFIG_FILE

    if any(Path(source).glob(f"*/{CONFIG_FILE}")):
        if settings:
            raise RecipeError(f"--set: {source} is built already, expected a recipe")
        return read_repository(Path(source))
    return read_recipe(read_source(source, settings, dict.fromkeys(FLAGS)))
