"""Checks the machines of a Ray cluster before they build: each must see the same folders and make the same pixels.

Takes the job of a build; raises if a machine lacks something. Functions for machines whose mmload may be missing or of
another version are sent as code; all others are called by name.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmload.builder.engines import pickled
from mmload.builder.shard_job import ShardJob
from mmload.builder.shard_layout import ShardPlan
from mmload.builder.staging import made_by
from mmload.errors import BuildError, MmloadError, counted
from mmload.sources import SourceSplit

_ROWS = 2  # rows that each machine decodes for comparison
_SHOWN = 3
_SECONDS = 180.0  # a worker imports torch first, on a network file system perhaps


@dataclass(frozen=True, kw_only=True)
class ExpectedRows:
    """Rows that a machine must reproduce before it may build. Picklable.

    They are the first rows of a shard, with their samples pickled, as a machine may lack the code of these, their
    checksum (:meth:`ShardJob.rows_checksum`), the versions of packages that pixels depend on, and a new folder in the
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
        try:
            crc = _checksum(job, self.plan, pickle.loads(self.samples))
        except MmloadError as error:
            return f"cannot read what can be read here: {error}"
        return (
            ""
            if crc == self.crc
            else (
                f"gets other pixels from the first samples of {self.plan.split}: the source there is another one, or a "
                "library that decodes is; make both equal"
            )
        )


def expected_rows(job: ShardJob, plan: ShardPlan, folder: Path) -> ExpectedRows:
    """Returns the first rows of a shard as this machine decodes them.

    Raises:
        MmloadError: as when the shard is built.
    """
    few = replace(plan, stop=min(plan.stop, plan.start + _ROWS))
    samples = job.samples(few)
    crc = _checksum(job, few, samples)
    return ExpectedRows(plan=few, samples=pickled(samples), crc=crc, versions=made_by(), folder=folder)


def _checksum(job: ShardJob, plan: ShardPlan, samples: SourceSplit | None) -> int:
    return (job if samples is None else job.with_samples(plan, samples)).rows_checksum(plan)


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
