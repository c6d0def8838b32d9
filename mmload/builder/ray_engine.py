"""Runs the jobs that build shards as tasks of a Ray cluster: ``mmload build --engine ray``.

Takes a job and plans, as every engine, and returns the summaries. A shard is a pure function of its plan and is moved
into place when it is complete, so a task whose machine dies is begun again elsewhere. Needs ray: the extra ``ray``.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmload.builder.engines import pickled
from mmload.builder.shard_job import OnProgress, ShardJob, private_paths, row_order, samples_checksum
from mmload.builder.shards import BuildPaths, ShardPlan, ShardSummary, made_by
from mmload.errors import BuildError, MmloadError, UsageError, counted
from mmload.runtime.resources import available_cores, check_threads, single_op_pool
from mmload.sources import SourceSplit

_ROWS = 2  # rows that each machine decodes for comparison
_SHOWN = 3
_SECONDS = 180.0  # a worker imports torch first, on a network file system perhaps


@dataclass(frozen=True, kw_only=True)
class ExpectedRows:
    """Rows that a machine must reproduce before it may build. Picklable.

    They are the first rows of a shard, with their samples pickled, as a machine may lack the code of these, their
    checksum (:func:`samples_checksum`), the versions of packages that pixels depend on, and a new folder in the
    build's working folder, which all machines must see.
    """

    plan: ShardPlan
    samples: bytes
    crc: int
    versions: Mapping[str, str]
    folder: Path

    def fault(self, job: ShardJob) -> str:
        """Returns what keeps this machine from building shards of the job, "" if nothing does."""
        if lacking := _faults(self.versions, look(self.versions, (*job.folders(), self.folder))):
            return lacking
        if _checksum(job, self.plan, pickle.loads(self.samples)) == self.crc:
            return ""
        return (
            f"cannot read the first samples of {self.plan.split}, or gets other pixels from them: the source there is "
            "another one, or a library that decodes is; make both equal"
        )


def expected_rows(job: ShardJob, plan: ShardPlan, folder: Path) -> ExpectedRows:
    """Returns the first rows of a shard as this machine decodes them."""
    few = replace(plan, stop=min(plan.stop, plan.start + _ROWS))
    samples = job.samples(few)
    crc = _checksum(job, few, samples)
    return ExpectedRows(plan=few, samples=pickled(samples), crc=crc, versions=made_by(), folder=folder)


def _checksum(job: ShardJob, plan: ShardPlan, samples: SourceSplit | None) -> int:
    """Returns the checksum of the samples of a plan, which come alone or are in the job's split."""
    if samples is not None:
        return samples_checksum(samples, range(len(samples)), job.chain)
    split = job.splits[plan.split]
    return samples_checksum(split, row_order(plan.start, plan.stop, len(split), job.shuffle_seed), job.chain)


def look(packages: Sequence[str] | Mapping[str, str], folders: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    """Returns the versions of these packages on this machine, and those of the folders that it does not see."""
    return _looker()(list(packages), [str(folder) for folder in folders])


def _looker() -> Callable[[list[str], list[str]], tuple[dict[str, str], list[str]]]:
    """Returns a function that is pickled with its code, as it is local: it runs where mmload is not installed, too."""

    def look_here(packages: list[str], folders: list[str]) -> tuple[dict[str, str], list[str]]:
        import os
        from contextlib import suppress
        from importlib import import_module, metadata

        versions = {}
        for name in packages:
            with suppress(ImportError):  # of which PackageNotFoundError is one
                versions[name] = import_module(name).__version__ if name == "mmload" else metadata.version(name)
        return versions, [folder for folder in folders if not os.path.exists(folder)]

    return look_here


def _check_machine(job_bytes: bytes, expected: ExpectedRows) -> str:
    """Returns what keeps a machine of the cluster from building, "" if nothing does; runs there."""
    try:
        job: ShardJob = pickle.loads(job_bytes)
    except Exception as error:  # whatever an import of the source's own code raises
        return f"cannot load the source ({type(error).__name__}: {error}); install its code there"
    return expected.fault(job)


def check_nodes(ray: Any, job: ShardJob, job_bytes: bytes, expected: ExpectedRows, threads: int) -> None:
    """Checks every machine of the cluster that has enough CPUs for a task.

    Raises:
        BuildError: if there is none, or one lacks something; the message names it.
    """
    nodes = list(usable(ray, threads))
    if not nodes:
        raise BuildError(
            f"no node of the Ray cluster has {counted(threads, 'CPU')} for a task; start nodes with "
            f"ray start --address, or lower --threads"
        )
    folders = [str(folder) for folder in (*job.folders(), expected.folder)]
    answers = _everywhere(ray, nodes, _looker(), [list(expected.versions), folders])
    _raise_faults({name: _faults(expected.versions, found) for name, found in answers.items()})
    _raise_faults(_everywhere(ray, nodes, _check_machine, [job_bytes, expected]))


def usable(ray: Any, threads: int) -> Iterator[Mapping[str, Any]]:
    """Yields the machines that are alive and large enough for a task."""
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0) >= threads:
            yield node


def _everywhere(
    ray: Any, nodes: Sequence[Mapping[str, Any]], call: Callable[..., Any], words: list[Any]
) -> dict[str, Any]:
    """Returns the result of the function by machine, without machines that die meanwhile."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(call)
    nodes_by_task = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        nodes_by_task[remote.options(scheduling_strategy=strategy).remote(*words)] = _name(node)
    ready, late = ray.wait(list(nodes_by_task), num_returns=len(nodes_by_task), timeout=_SECONDS)
    if late:
        names = ", ".join(nodes_by_task[reference] for reference in late[:_SHOWN])
        raise BuildError(f"no answer within {_SECONDS:.0f} s from Ray node {names}; look there, or remove it")
    answers = {}
    for reference in ready:
        try:
            answers[nodes_by_task[reference]] = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise BuildError(f"Ray node {nodes_by_task[reference]} cannot run mmload: {last_line(error)}") from error
        except ray.exceptions.RayError:  # it has died; the cluster goes on without it
            continue
    return answers


def _faults(expected: Mapping[str, str], found: tuple[Mapping[str, str], Sequence[str]]) -> str:
    """Formats the difference of a machine from this one; "" if there is none."""
    versions, missing = found
    unlike = [name for name in expected if versions.get(name) != expected[name]]
    if unlike:
        found_versions = ", ".join(f"{name} {versions[name]}" if name in versions else f"no {name}" for name in unlike)
        own_versions = ", ".join(f"{name} {expected[name]}" for name in unlike)
        return f"has {found_versions}, this machine has {own_versions}; install the same there"
    if missing:
        return f"does not see {missing[0]}; mount the same file system there, at the same path"
    return ""


def _raise_faults(faults: Mapping[str, str]) -> None:
    """Raises for the machines that lack something."""
    bad = [(name, fault) for name, fault in sorted(faults.items()) if fault]
    if bad:
        more = f" (and {counted(len(bad) - 1, 'other node')})" if len(bad) > 1 else ""
        raise BuildError(f"Ray node {bad[0][0]}{more} {bad[0][1]}")


def _name(node: Mapping[str, Any]) -> str:
    """Formats the name of a machine; the node id distinguishes several nodes of one machine."""
    return f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']}, {node['NodeID'][:8]})"


def last_line(error: Exception) -> str:
    """Returns the last line of an error's text; the last line of another machine's traceback is the error itself."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


EXTRA = "--engine ray needs ray; in a clone of mmload run: pip install '.[ray]'"
_LOCAL = "local"
_GO_ON = "run the same command again to continue from the finished shards"
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

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> list[ShardSummary]:
        """Builds the shards; see :class:`mmload.builder.engines.Engine`.

        Raises:
            BuildError: if the cluster cannot be reached, one of its machines lacks what the build needs, or a shard
                was begun several times in vain.
            MmloadError: any error of the job.
        """
        if not plans:
            return []
        paths = BuildPaths(job.folders()[-1])
        with private_paths(paths) as own, connected(self.chosen) as ray:
            job_bytes, expected = pickled(job.without_samples()), expected_rows(job, plans[0], own.folder)
            check_nodes(ray, job, job_bytes, expected, self.threads)
            return _Tasks(ray, job, plans, on_progress, self.threads).build_all(job_bytes, expected)


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
    _check_reachable(address)
    before = signal.getsignal(signal.SIGTERM)  # ray replaces it
    try:
        if address == _LOCAL:
            start_local(ray, available_cores())
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        which = {"auto": "no Ray cluster is running here", _LOCAL: "Ray cannot be started here"}
        raise BuildError(
            f"{which.get(address, f'no Ray cluster can be used at {address}')} ({last_line(error)}); "
            "start one with ray start --head, or give --address HOST:PORT"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        ray.shutdown()


def start_local(ray: Any, cpus: int) -> None:
    """Starts a Ray cluster of this machine alone; it ends with the connection."""
    ray.init(
        address=_LOCAL,
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
    )


def _check_reachable(address: str) -> None:
    """Fails within seconds where nothing listens: ray tries for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise BuildError(
            f"no Ray cluster answers at {address} ({error}); look which address ray start --head has shown"
        ) from error


class _Tasks:
    """The tasks of a build, and the plans that wait."""

    def __init__(
        self, ray: Any, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress, threads: int
    ) -> None:
        self.ray, self.job, self.plans, self.on_progress, self.threads = ray, job, plans, on_progress, threads
        self.waiting = list(reversed(range(len(plans))))
        self.busy: dict[Any, int] = {}
        self.summaries: dict[int, ShardSummary] = {}
        self.tries = Counter[int]()
        self.slots, self.usable_at = 1, time.monotonic()
        self.looked_at = 0.0

    def build_all(self, job_bytes: bytes, expected: ExpectedRows) -> list[ShardSummary]:
        """Builds all shards; ends every task if it fails."""
        start = self.ray.remote(num_cpus=self.threads, max_retries=0, scheduling_strategy="SPREAD")(build_shard)
        shared = self.ray.put((job_bytes, expected))
        name = shared.hex()
        try:
            while len(self.summaries) < len(self.plans):
                self._look_at_cluster()
                while self.waiting and len(self.busy) < self.slots + _AHEAD:
                    number = self.waiting.pop()
                    plan = self.plans[number]
                    samples = pickled(self.job.samples(plan))
                    self.busy[start.remote([shared], name, plan, samples, self.threads)] = number
                for task in self.ray.wait(list(self.busy), num_returns=1, timeout=1.0)[0]:
                    self._receive(task)
        finally:
            self._end()
        return [self.summaries[number] for number in range(len(self.plans))]

    def _look_at_cluster(self) -> None:
        """Counts every few seconds how many tasks can run at once; raises if none can for a minute."""
        now = time.monotonic()
        if now < self.looked_at + 2:
            return
        self.looked_at = now
        self.slots = sum(int(node["Resources"]["CPU"] // self.threads) for node in usable(self.ray, self.threads))
        if self.slots:
            self.usable_at = now
        elif now > self.usable_at + _ALONE_SECONDS:
            raise BuildError(f"no node of the Ray cluster is left that could build; {_GO_ON}")

    def _receive(self, task: Any) -> None:
        """Takes the result of a task."""
        number = self.busy.pop(task)
        plan = self.plans[number]
        try:
            found = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            raise BuildError(f"a build worker failed ({last_line(error)})") from error
        except self.ray.exceptions.RayError as error:
            self._begin_again(number, type(error).__name__)
            return
        if isinstance(found, MmloadError):
            raise found
        self.summaries[number] = found
        self.on_progress(plan.stop - plan.start, found.skipped)

    def _begin_again(self, number: int, cause: str) -> None:
        """Puts a shard whose machine or worker has died back among those that wait."""
        self.tries[number] += 1
        if self.tries[number] == _TRIES:
            plan = self.plans[number]
            raise BuildError(
                f"shard {plan.index} of {plan.split} was begun {_TRIES} times, and its worker died each time "
                f"({cause}); look whether memory runs out there, or {_GO_ON}"
            )
        self.waiting.append(number)

    def _end(self) -> None:
        """Ends the tasks that still run: unfinished shards are built again anyway."""
        for task in self.busy:
            with suppress(self.ray.exceptions.RayError, ValueError):
                self.ray.cancel(task, force=True)


_jobs: dict[str, tuple[ShardJob, str]] = {}
"""In a worker process: the job that it works on, and why it may not, by the job's name. One entry."""


def build_shard(
    shared: Sequence[Any], name: str, plan: ShardPlan, samples: bytes, threads: int
) -> ShardSummary | MmloadError:
    """Builds one shard on a machine of the cluster, as a task of Ray; returns its summary, or why it failed.

    Args:
        shared: a list with one reference to the pickled job without samples and to the rows that this machine must get
            before it may build: only the first task of a process fetches them.
        name: name of the job.
        plan: the shard.
        samples: pickled, as :meth:`ShardJob.samples` returns them.
        threads: decoding threads.
    """
    if name not in _jobs:
        import ray

        job_bytes, expected = ray.get(shared[0])
        job: ShardJob = pickle.loads(job_bytes)
        _jobs.clear()
        _jobs[name] = job, expected.fault(job)
    job, fault = _jobs[name]
    if fault:
        return BuildError(f"Ray node {socket.gethostname()} {fault}")
    part: SourceSplit | None = pickle.loads(samples)
    try:
        with single_op_pool(threads, "mmload-build") as pool:
            work = job if part is None else job.with_samples(plan, part)
            return work(plan, pool, threads, lambda samples, skipped: None)
    except MmloadError as error:
        return error
