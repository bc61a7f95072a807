"""Who computes points: this process, worker processes, or a Dask or Ray cluster, through joblib.

Workers that are children of this process leave when it is gone. A cluster that does not answer is
an error within 15 seconds; a backend that breaks is ``LostBackend``, and what it finished is kept.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from hisparse_sim.errors import HiSparseError, InputError
from hisparse_sim.planning.point import Kind
from hisparse_sim.planning.row import Row, compute
from hisparse_sim.scenario.scenario import Scenario

T = TypeVar("T")
Name = Literal["local", "dask", "ray"]
EXTRAS = {"dask": "distributed", "ray": "ray"}
"""The module that each backend needs; its extra is of the backend's name."""

_KNOCK_S = 5.0
_CONNECT_S = 8.0
"""Together below the 15 s within which an unreachable cluster is said."""
_LOOK_S = 0.5


class Compute(Protocol):
    """Calls tasks, and yields index and result of each in the order in which they end."""

    def __call__(self, tasks: Sequence[Callable[[], T]], /) -> Iterator[tuple[int, T]]: ...


class LostBackend(Exception):
    """Workers or the cluster went away; what was finished before is in the folder."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker gets. ``parent``: the process without which it is pointless."""

    scenarios: tuple[Scenario, ...]
    kind: Kind
    parent: int | None

    def __call__(self) -> list[Row | None]:
        """The rows, in order."""
        if self.parent is not None:
            leave_without(self.parent)
        return [compute(scenario, self.kind) for scenario in self.scenarios]


_watching = False


def leave_without(parent: int) -> None:
    """End this process when ``parent`` is gone: nobody would take the result."""
    global _watching
    if _watching or os.getpid() == parent:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
    _watching = True


@contextmanager
def workers(name: Name, jobs: int, address: str | None) -> Iterator[Compute]:
    """A function that calls tasks and yields ``(index, result)`` as they finish, in any order.

    Raises ``InputError`` for a missing extra or a cluster that cannot be reached, ``LostBackend`` from
    what it yields when workers are lost.
    """
    if name == "local" and jobs == 1:
        yield _here
        return
    if name == "local":
        yield _Joblib(jobs, "loky", {})
        return
    connect = _dask if name == "dask" else _ray
    with connect(jobs, address) as (count, options):
        yield _Joblib(count, name, options)


def _import(module: str, extra: str, where: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"needs {module}, which is not installed ({error}): pip install 'hisparse-sim[{extra}]'",
            where=where,
        ) from None


def _here(tasks: Sequence[Callable[[], T]], /) -> Iterator[tuple[int, T]]:
    for index, task in enumerate(tasks):
        yield index, task()


def _numbered(index: int, task: Callable[[], T]) -> tuple[int, T]:
    return index, task()


@dataclass(frozen=True, slots=True)
class _Joblib:
    jobs: int
    backend: str
    options: dict[str, Any]

    def __call__(self, tasks: Sequence[Callable[[], T]], /) -> Iterator[tuple[int, T]]:
        return _through_joblib(tasks, self.jobs, self.backend, self.options)


def _through_joblib(
    tasks: Sequence[Callable[[], T]], jobs: int, backend: str, options: dict[str, Any]
) -> Iterator[tuple[int, T]]:
    import warnings

    import joblib

    work = [joblib.delayed(_numbered)(index, task) for index, task in enumerate(tasks)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about their own
            with joblib.parallel_config(backend=backend, n_jobs=jobs, **options):
                if backend == "ray":  # its pool gives whole lists only
                    with joblib.Parallel(batch_size=1) as parallel:
                        for start in range(0, len(work), 2 * jobs):
                            yield from parallel(work[start : start + 2 * jobs])
                    return
                yield from joblib.Parallel(
                    batch_size=1, pre_dispatch=2 * jobs, return_as="generator_unordered"
                )(work)
    except (HiSparseError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise LostBackend(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error


def _knock(address: str, where: str, default_port: int) -> None:
    """See that something listens at ``address``."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host, port = None, default_port
    if not host:
        raise InputError(f"{address!r} is no address such as tcp://host:{default_port}", where=where)
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except OSError as error:
        raise InputError(
            f"nothing answers at {host}:{port} ({error.strerror or error}); is the scheduler running?",
            where=where,
        ) from None


def within(seconds: float, action: Callable[[], T], *, where: str, what: str) -> T:
    """The result of ``action``, or an ``InputError`` when it fails or takes longer than ``seconds``."""
    found: list[T] = []
    failed: list[BaseException] = []

    def act() -> None:
        try:
            found.append(action())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if found:
        return found[0]
    said = str(failed[0]).splitlines()[0] if failed and str(failed[0]) else f"no answer in {seconds:g} s"
    raise InputError(f"{what}: {said}", where=where)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, of which they would each print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _dask(jobs: int, address: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """A client of the scheduler at ``address``, or of a local cluster of ``jobs`` processes."""
    distributed = _import("distributed", "dask", "--backend dask")
    where = f"--address {address}" if address else "--backend dask"
    cluster = None
    try:
        if address is None:
            with _deaf_children():
                cluster = distributed.LocalCluster(
                    n_workers=jobs, threads_per_worker=1, dashboard_address=None, silence_logs=50
                )
            client = distributed.Client(cluster)
        else:
            _knock(address, where, 8786)
            client = within(
                _CONNECT_S,
                lambda: distributed.Client(address, timeout=_CONNECT_S),
                where=where,
                what="is no Dask scheduler that answers",
            )
        try:
            count = sum(client.nthreads().values())
            if not count:
                raise InputError("has no workers; start dask worker processes", where=where)
            yield max(count, 1), {"wait_for_workers_timeout": _CONNECT_S}
        finally:
            with suppress(Exception):
                client.close(timeout=2)
    finally:
        if cluster is not None:
            with suppress(Exception):
                cluster.close(timeout=5)


@contextmanager
def _ray(jobs: int, address: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The Ray cluster at ``address``, or a local one of ``jobs`` processes."""
    ray = _import("ray", "ray", "--backend ray")
    joblib_ray = _import("ray.util.joblib", "ray", "--backend ray")
    where = f"--address {address}" if address else "--backend ray"
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address is None:
        with _deaf_children():
            ray.init(num_cpus=jobs, include_dashboard=False, **quiet)
    else:
        if address != "auto":
            _knock(address, where, 10001 if address.startswith("ray://") else 6379)
        within(
            _CONNECT_S,
            lambda: ray.init(address=address, **quiet),
            where=where,
            what="is no Ray head that answers",
        )
    try:
        joblib_ray.register_ray()
        count = int(ray.cluster_resources().get("CPU", 0))
        if not count:
            raise InputError("has no CPUs; start ray workers", where=where)
        yield min(count, jobs) if jobs > 1 else count, {}
    finally:
        with suppress(Exception):
            ray.shutdown()
