"""Runs the jobs that build shards as tasks of a Ray cluster: ``mmload build --engine ray``.

A shard is a pure function of its plan and is moved
into place when it is complete, so a task whose machine dies is begun again elsewhere. Every worker process compares its
machine with this one before its first shard. Needs ray: the extra ``ray``.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmload.builder.pipeline import pickled
from mmload.builder.shard_job import OnProgress, ShardJob, private_paths, samples_checksum
from mmload.builder.shards import BuildPaths, ShardPlan, ShardSummary, made_by
from mmload.errors import BuildError, MmloadError, UsageError, counted
from mmload.runtime.resources import available_cores, check_threads

EXTRA = "--engine ray needs ray; in a clone of mmload run: pip install '.[ray]'"
_LOCAL = "local"
_ROWS = 2  # rows that each machine decodes for comparison
_TRIES = 5  # of one shard: whatever kills its worker so often is in the shard, not in the cluster
_AHEAD = 16  # tasks that wait for a CPU, so that none is idle and an autoscaler sees that more are wanted
_ALONE_SECONDS = 60.0  # without any machine that could run a task


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Runs shards on the machines of a Ray cluster, as many at once as its CPUs allow.

    The source and the destination must be on a file system that all machines see at the same paths.

    Attributes:
        address: HOST:PORT of the cluster; "auto": the one that this machine is part of; "local": one on this
            machine that starts and ends with the build; None: that of ``RAY_ADDRESS``, "local" if it is not set.
        threads: decoding threads of a task, which takes as many CPUs.

    Raises:
        UsageError: if ray is not installed, or an argument is invalid.
    """

    address: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        check_threads(self.threads)
        if find_spec("ray") is None:
            raise UsageError(EXTRA)
        if "://" in self.chosen:
            raise UsageError(
                f"address is {self.chosen!r}; give HOST:PORT, and run this on a machine of the cluster, "
                "not through a Ray Client: it writes the dataset"
            )

    @property
    def chosen(self) -> str:
        """The address that is used. Never a cluster that merely runs on this machine: it may be somebody else's."""
        return self.address or os.environ.get("RAY_ADDRESS") or _LOCAL

    @property
    def note(self) -> str:
        """A sentence that says which cluster builds."""
        if self.chosen == _LOCAL:
            return (
                "builds on a Ray cluster of this machine's cores, which ends with the build; for another add --address"
            )
        return f"builds on the Ray cluster at {self.chosen}{'' if self.address else ', from RAY_ADDRESS'}"

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Builds the shards; see :class:`mmload.builder.shard_job.Engine`.

        Raises:
            BuildError: if the cluster cannot be reached, one of its machines lacks what the build needs, or a shard
                was begun several times in vain.
            MmloadError: any error of the job.
        """
        if plans:
            with private_paths(BuildPaths(job.folders()[-1])) as own, connected(self.chosen) as ray:
                _Tasks(ray, job, plans, on_progress, self.threads).build_all(_work_of(job, plans[0], own.folder))


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yields the ray module, connected to a cluster; disconnects at the end, if it was not connected before.

    :attr:`RayEngine.address` describes the address.

    Raises:
        BuildError: if there is no such cluster.
    """
    import ray

    if ray.is_initialized():
        yield ray
        return
    _check_listening(address)
    own = {"num_cpus": available_cores(), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    before = signal.getsignal(signal.SIGTERM)  # ray replaces it
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **(own if address == _LOCAL else {}))
    except (ConnectionError, RuntimeError, ValueError) as error:
        which = {"auto": "no Ray cluster is running here", _LOCAL: "Ray cannot be started here"}
        raise BuildError(
            f"{which.get(address, f'no Ray cluster can be used at {address}')} ({_last_line(error)}); "
            "start one with ray start --head, or give --address HOST:PORT"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Fails within seconds where nothing listens at HOST:PORT: ray tries for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise BuildError(
                f"no Ray cluster answers at {address} ({error}); look which address ray start --head has shown"
            ) from error


def _last_line(error: Exception) -> str:
    """Returns the last line of an error's text; the last line of another machine's traceback is the error itself."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


class _Tasks:
    """The tasks of a build, and the plans that wait."""

    def __init__(
        self, ray: Any, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress, threads: int
    ) -> None:
        self.ray, self.job, self.on_progress, self.threads = ray, job, on_progress, threads
        self.waiting = list(reversed(plans))
        self.busy: dict[Any, ShardPlan] = {}
        self.tries = Counter[ShardPlan]()
        self.usable_at = float("-inf")

    def build_all(self, work: _Work) -> None:
        """Builds all shards; ends every task if it fails."""
        start = self.ray.remote(num_cpus=self.threads, max_retries=0, scheduling_strategy="SPREAD")(build_shard)
        shared = self.ray.put(work)
        try:
            while self.waiting or self.busy:
                slots = self._slots()
                while self.waiting and len(self.busy) < slots + _AHEAD:
                    plan = self.waiting.pop()
                    task = start.remote([shared], shared.hex(), plan, pickled(self.job.samples(plan)), self.threads)
                    self.busy[task] = plan
                for task in self.ray.wait(list(self.busy), num_returns=1, timeout=1.0)[0]:
                    self._receive(task)
        finally:
            for task in self.busy:  # unfinished shards are built again anyway
                with suppress(self.ray.exceptions.RayError, ValueError):
                    self.ray.cancel(task, force=True)

    def _slots(self) -> int:
        """Returns how many tasks the machines can run at once; raises if none could for a minute."""
        cores = [node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"]]
        slots = sum(int(count // self.threads) for count in cores)
        if slots:
            self.usable_at = time.monotonic()
        elif time.monotonic() > self.usable_at + _ALONE_SECONDS:
            raise BuildError(
                f"no node of the Ray cluster has {counted(self.threads, 'CPU')} for a task; start nodes with "
                "ray start --address, or lower --threads, and run the same command again"
            )
        return slots

    def _receive(self, task: Any) -> None:
        """Takes the result of a task."""
        plan = self.busy.pop(task)
        try:
            found = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            raise BuildError(f"a build worker failed ({_last_line(error)})") from error
        except self.ray.exceptions.RayError as error:
            self._begin_again(plan, type(error).__name__)
            return
        if isinstance(found, MmloadError):
            raise found
        self.on_progress(len(plan), found.skipped)

    def _begin_again(self, plan: ShardPlan, cause: str) -> None:
        """Puts a shard whose machine or worker has died back among those that wait."""
        self.tries[plan] += 1
        if self.tries[plan] == _TRIES:
            raise BuildError(
                f"shard {plan.index} of {plan.split} was begun {_TRIES} times, and its worker died each time "
                f"({cause}); look whether memory runs out there, or run the same command again to continue"
            )
        self.waiting.append(plan)


# On the machines of the cluster.


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A job, and what a machine must have before it may build shards of it. Picklable.

    Attributes:
        versions: versions of the packages that pixels depend on.
        folders: folders that it must see, one of which is new.
        job: the pickled job without samples, whose code a machine may lack.
        plan: the first rows of a shard.
        samples: their samples, pickled.
        crc: their checksum (:func:`samples_checksum`).
    """

    versions: Mapping[str, str]
    folders: Sequence[Path]
    job: bytes
    plan: ShardPlan
    samples: bytes
    crc: int


def _work_of(job: ShardJob, plan: ShardPlan, folder: Path) -> _Work:
    """Returns what the workers need for a job: the first rows of a plan are compared, and ``folder`` is new."""
    few = replace(plan, stop=min(plan.stop, plan.start + _ROWS))
    samples = job.samples(few)
    return _Work(
        versions=made_by(),
        folders=(*job.folders(), folder),
        job=pickled(job.without_samples()),
        plan=few,
        samples=pickled(samples),
        crc=samples_checksum(*job.rows_of(few, samples), job.chain),
    )


def _checked_job(work: _Work) -> ShardJob:
    """Returns the job, if this machine can build it as the one that has sent it; raises BuildError."""
    here = made_by()
    if unlike := [name for name in work.versions if here.get(name) != work.versions[name]]:
        has, wanted = (
            ", ".join(f"{name} {found.get(name, 'none')}" for name in unlike) for found in (here, work.versions)
        )
        raise BuildError(f"has {has}, the machine that began the build has {wanted}; install the same there")
    if missing := [folder for folder in work.folders if not folder.exists()]:
        raise BuildError(f"does not see {missing[0]}; mount the same file system there, at the same path")
    try:
        job: ShardJob = pickle.loads(work.job)
        crc = samples_checksum(*job.rows_of(work.plan, pickle.loads(work.samples)), job.chain)
    except Exception as error:  # whatever an import of the source's own code raises
        raise BuildError(f"cannot load the source ({type(error).__name__}: {error}); install its code there") from error
    if crc != work.crc:
        raise BuildError(
            f"cannot read the first samples of {work.plan.split}, or gets other pixels from them: the source there is "
            "another one, or a library that decodes is; make both equal"
        )
    return job


_jobs: dict[str, ShardJob] = {}
"""In a worker process: the checked job that it works on, by its name. One entry."""


def build_shard(
    shared: Sequence[Any], name: str, plan: ShardPlan, samples: bytes, threads: int
) -> ShardSummary | MmloadError:
    """Builds one shard on a machine of the cluster, as a task of Ray; returns its summary, or why it failed.

    Args:
        shared: a list with one reference to the work: only the first task of a process fetches it.
        name: name of the job.
        plan: the shard.
        samples: pickled, as :meth:`ShardJob.samples` returns them.
        threads: decoding threads.
    """
    if name not in _jobs:
        import ray

        _jobs.clear()
        try:
            _jobs[name] = _checked_job(ray.get(shared[0]))
        except BuildError as error:
            return BuildError(f"Ray node {socket.gethostname()} {error}")
    try:
        return _jobs[name].build_shard(plan, threads, lambda samples, skipped: None, pickle.loads(samples))
    except MmloadError as error:
        return error
