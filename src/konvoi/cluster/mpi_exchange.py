"""A process of its own that each worker under mpirun starts once: a word from everyone, to everyone.

python mpi_exchange.py WORD prints the words of all ranks as a JSON list. No variable of OpenMPI says where the first
rank is, but its daemons know each other: what a rank publishes goes through them, over connections that mpirun has made
already. It needs no mpi4py, only the library that mpirun itself comes with; and in a process of its own, that library's
threads and hooks stay out of the training.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import time
from pathlib import Path

LIBRARY = "libmpi.so.40"
"""Of OpenMPI 4 and 5."""
MAX_PORT_NAME = 1024


def exchange(word: str) -> list[str]:
    own_rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    mpi = ctypes.CDLL(_library(), ctypes.RTLD_GLOBAL)

    def handle(name: str) -> ctypes.c_void_p:
        """The MPI_... constants are addresses of the library's own objects."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))

    def look_up(rank: int) -> str:
        found = ctypes.create_string_buffer(MAX_PORT_NAME)
        # An error, as long as it is not published.
        while mpi.MPI_Lookup_name(_name(rank), handle("ompi_mpi_info_null"), found):
            time.sleep(0.05)
        return found.value.decode()

    if mpi.MPI_Init(None, None):
        sys.exit("MPI_Init failed")
    mpi.MPI_Comm_set_errhandler(handle("ompi_mpi_comm_world"), handle("ompi_mpi_errors_return"))
    if mpi.MPI_Publish_name(_name(own_rank), handle("ompi_mpi_info_null"), word.encode()):
        sys.exit("MPI_Publish_name failed")
    words = [look_up(rank) for rank in range(size)]
    mpi.MPI_Finalize()
    return words


def _name(rank: int) -> bytes:
    return f"konvoi-{rank}".encode()


def _library() -> str:
    """Beside mpirun where it was installed into a folder of its own, as in /opt/amazon/openmpi."""
    mpirun = shutil.which("mpirun")
    folders = [Path(mpirun).resolve().parents[1] / name for name in ("lib", "lib64")] if mpirun else []
    return next((str(folder / LIBRARY) for folder in folders if (folder / LIBRARY).exists()), LIBRARY)


if __name__ == "__main__":
    print(json.dumps(exchange(sys.argv[1])))
