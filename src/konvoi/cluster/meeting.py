"""What workers that another launcher started tell each other before they train, and when one of them fails."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from konvoi.cluster.places import find_place
from konvoi.cluster.rendezvous import connect_store, serve_store
from konvoi.errors import HostError, MachineError, UserError
from konvoi.world import World, interface_towards

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
# One host may prepare its data for hours while the others wait.
WAITING_TIME = timedelta(days=7)
# All ranks are to be clients of the store that we serve; torchrun, which serves one itself, sets it too.
STORE_IS_SERVED = "TORCHELASTIC_USE_AGENT_STORE"
FAILED = "failed"
# Gloo's words when the process at the other end is gone.
LOST_WORKER = re.compile("Connection (closed|reset) by peer")
LOST_HINT = "the system does that when memory runs out: dmesg on its host tells"
OTHER_ADDRESS = "set MASTER_ADDR to the first host's address in the private network (mpirun -x MASTER_ADDR=...)"


class ToldElsewhereError(Exception):
    """Another worker has failed, and says why."""


def meet(world: World) -> Meeting:
    """Joins all workers, at an address of the first one that is not open to the world."""
    from torch._C._distributed_c10d import HashStore

    if world.size == 1:
        return Meeting(world, HashStore())
    address, port = find_place(world)
    use_interface_towards(address, world.num_hosts)
    store = _serve(address, port) if world.rank == 0 and not _is_served() else connect_store(address, port)
    os.environ.update({"MASTER_ADDR": address, "MASTER_PORT": str(port), STORE_IS_SERVED: "True"})
    return Meeting(world, store)


def use_interface_towards(address: str, num_hosts: int) -> None:
    """Gloo and NCCL would take whatever the host name resolves to, or the first interface that there is."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    try:
        interface = interface_towards(address)
    except OSError as error:
        problem = f"there is no way to the first worker, {address}: {error.strerror}"
        raise HostError(socket.gethostname(), problem, OTHER_ADDRESS) from None
    if num_hosts > 1 and interface == interface_towards("127.0.0.1"):
        problem = f"{address} is loopback here ({socket.gethostbyname(address)}), where no other host arrives"
        raise HostError(socket.gethostname(), problem, OTHER_ADDRESS)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


class Meeting:
    """Every worker calls the same methods in the same order."""

    def __init__(self, world: World, store: Store) -> None:
        from torch._C._distributed_c10d import PrefixStore

        self._store = PrefixStore(f"konvoi/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        self._store.set_timeout(WAITING_TIME)
        self._num_calls = 0
        # Only now is it known where workers are spread unevenly.
        self.world = replace(world, num_hosts=self._everyone(world, "local_rank", str(world.local_rank)).count("0"))

    def together(self, work: Callable[[], T]) -> T:
        """Everyone does its part; where somebody can't, all end."""
        self._num_calls += 1
        key = f"call{self._num_calls}"
        try:
            result = work()
        except Exception:
            self._store.set(f"{key}/{self.world.rank}", FAILED)
            raise
        if FAILED in self._everyone(self.world, key, "done"):
            raise ToldElsewhereError
        return result

    def told_by_first(self, work: Callable[[], Any]) -> Any:
        """What the first rank finds, as JSON, for everyone."""
        key = f"told{self._num_calls}"
        self.together(lambda: self._store.set(key, json.dumps(work())) if self.world.rank == 0 else None)
        return json.loads(self._store.get(key))

    @contextmanager
    def words_once(self) -> Iterator[None]:
        """Only the first error of all workers is one to show: what follows from it on the others is no news."""
        try:
            yield
        except ToldElsewhereError:
            raise
        except Exception as error:
            if not self._fails_first():
                raise ToldElsewhereError from None
            if LOST_WORKER.search(str(error)):
                error = MachineError("another worker ended without a word", f"{LOST_HINT} ({error})")
            if isinstance(error, UserError) and self.world.num_hosts > 1:
                raise HostError(socket.gethostname(), error.problem, error.hint) from None
            raise error

    def _fails_first(self) -> bool:
        try:
            return self._store.add("failures", 1) == 1
        except RuntimeError:
            # The first rank served the store, and is gone.
            return self.world.rank == 0

    def _everyone(self, world: World, key: str, own: str) -> list[str]:
        """What each rank says, once all have."""
        self._store.set(f"{key}/{world.rank}", own)
        return [self._store.get(f"{key}/{rank}").decode() for rank in range(world.size)]


def _is_served() -> bool:
    return os.environ.get(STORE_IS_SERVED) == "True"


def _serve(address: str, port: int) -> Store:
    try:
        return serve_store(address, port)
    except OSError as error:
        host = socket.gethostname()
        if error.errno == errno.EADDRINUSE:
            hint = "set MASTER_PORT to another one (mpirun -x MASTER_PORT=...)"
            raise MachineError(f"{host}: port {port} of {address} is in use", hint) from None
        problem = f"the first worker runs here and is to be met at {address}, which is no address of this host"
        raise HostError(host, problem, OTHER_ADDRESS) from None
