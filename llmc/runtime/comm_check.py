"""What `llmc doctor mpi` runs on each of a few ranks: do they add up, and how fast.

    mpirun -n 2 python -m llmc.runtime.comm_check 2

Rank 0 writes one line of JSON. Exit code 5, with one line of why, when the ranks are not one job.
"""

import json
import sys
import time

import numpy as np

from llmc.errors import LlmcError
from llmc.runtime.comm import describe_library, open_communicator

SIZES_BYTES = (4096, 65536)
NUM_REPEATS = 50


def main(world_size: int) -> int:
    """Check every rank's sum; measure an allreduce of each of SIZES_BYTES, in microseconds."""
    try:
        comm = open_communicator(world_size)
    except LlmcError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    everyone = tuple(range(world_size))
    times_us = {}
    for size in SIZES_BYTES:
        times = []
        for _ in range(NUM_REPEATS):
            values = np.full(size // 4, comm.rank + 1, np.float32)
            started = time.perf_counter()
            comm.allreduce(values, everyone)
            times.append(time.perf_counter() - started)
            if not np.all(values == world_size * (world_size + 1) / 2):
                sys.stderr.write(f"error: rank {comm.rank}: the sum is {values[0]}\n")
                return 5
        times_us[str(size)] = round(1e6 * float(np.median(times)), 1)
    if comm.rank == 0:
        found = {"ranks": world_size, "library": describe_library(), "allreduce_us": times_us}
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
