"""Runs the jobs that build shards: in threads of this process, or in several processes on machines with many cores.

Takes a picklable function that builds one shard from its plan, and the plans. An engine decides only where a shard is
built, never its content. A worker that dies ends the run at once.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Annotated, Protocol

from msgspec import Meta

from mmload.builder.recipe import check_values
from mmload.builder.shard_job import OnProgress, ShardJob
from mmload.builder.shards import ShardPlan
from mmload.errors import BuildError, MmloadError
from mmload.runtime.processes import cause_of_death, depend_on_parent, start_process
from mmload.runtime.resources import MOST_THREADS, available_cores

CORES_A_PROCESS = 8
"""Threads share one interpreter lock: a row holds it for about 0.1 ms of the 2 ms it takes, so one process saturates
8 cores and more; a machine with more cores runs more processes."""


Count = Annotated[
    Annotated[int, Meta(ge=1, le=MOST_THREADS)] | None,
    Meta(description=f"1 to {MOST_THREADS}, or leave it out for the cores available"),
]


class Engine(Protocol):
    """Runs shards. Duties: run every plan once, in any order and place; leave nothing running on return.

    A shard may be begun again while a worker that was given up still writes it: each is written apart.
    """

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Builds the shards.

        ``on_progress`` is called in this thread with the progress; an exception that it raises ends the run.
        """


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """Runs on this machine: ``processes`` over shards, each with ``threads``. With one process, runs in this one.

    Attributes:
        threads: decoding threads of each process; None divides the available cores.
        processes: None starts one per 8 cores.

    Raises:
        UsageError: if a number is invalid.
    """

    threads: Count = None
    processes: Count = None

    def __post_init__(self) -> None:
        check_values(self)

    def build_shards(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        """Builds the shards; see :class:`Engine`.

        Raises:
            BuildError: if a worker process dies, or the job cannot be pickled.
            MmloadError: any error of the job.
        """
        cores = available_cores()
        processes = min(self.processes or -(-cores // CORES_A_PROCESS), len(plans))
        threads = self.threads or max(1, cores // max(1, processes))
        if processes > 1:
            _WorkerPool(job, plans, on_progress).build_all(processes, threads)
        else:
            for plan in plans:
                job(plan, threads, on_progress)


class _WorkerPool:
    """Worker processes, and the plans that wait for one."""

    def __init__(self, job: ShardJob, plans: Sequence[ShardPlan], on_progress: OnProgress) -> None:
        self.job, self.on_progress = job, on_progress
        self.waiting = list(reversed(plans))
        self.workers: dict[Connection, BaseProcess] = {}
        self.busy: set[Connection] = set()

    def build_all(self, processes: int, threads: int) -> None:
        """Builds all shards; kills every worker at the end: unfinished shards are rebuilt anyway."""
        try:
            job_bytes = pickled(self.job.without_samples())
            for _ in range(processes):
                worker, pipe = start_process(_work, threads, daemon=True)
                self.workers[pipe] = worker
            for pipe in self.workers:  # after all were started: each reads it only after importing torch
                self._send(pipe, job_bytes)
                self._send_plan(pipe)
            del job_bytes
            while self.busy:
                for ready in wait(list(self.busy)):
                    self._receive(ready)  # type: ignore[arg-type]  # it waits only for these pipes
        finally:
            for pipe, worker in self.workers.items():
                worker.kill()
                worker.join()
                worker.close()
                pipe.close()

    def _send(self, pipe: Connection, content: bytes) -> None:
        try:
            pipe.send_bytes(content)
        except OSError as error:
            raise self._death(pipe) from error

    def _send_plan(self, pipe: Connection) -> None:
        """Sends a worker its next plan, if any, with its samples: those of all plans of a million would be 80 MB."""
        self.busy.discard(pipe)
        if self.waiting:
            plan = self.waiting.pop()
            self._send(pipe, pickled((plan, self.job.samples(plan))))
            self.busy.add(pipe)

    def _receive(self, pipe: Connection) -> None:
        try:
            kind, *body = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._death(pipe) from error
        if kind == "progress":
            self.on_progress(*body)
        elif kind == "failed":
            raise body[0]
        else:
            self._send_plan(pipe)

    def _death(self, pipe: Connection) -> BuildError:
        cause = cause_of_death(self.workers[pipe])
        return BuildError(
            f"a build worker died ({cause}); run the same command again to continue from the finished shards"
        )


def pickled(message: object) -> bytes:
    """Returns a message to a worker.

    Raises:
        BuildError: if it holds something that cannot be sent.
    """
    try:
        return pickle.dumps(message)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise BuildError(f"the source cannot be sent to worker processes ({error}); build with 1 process") from error


def _work(pipe: Connection, threads: int) -> None:
    """Receives plans and builds their shards in a worker process, until it is killed or its build ends."""
    depend_on_parent(lambda: os._exit(1))
    try:
        job: ShardJob = pickle.loads(pipe.recv_bytes())
        while True:
            plan, samples = pickle.loads(pipe.recv_bytes())
            job(plan, threads, lambda *counts: pipe.send(("progress", *counts)), samples)
            pipe.send(("finished",))
    except (EOFError, BrokenPipeError):
        os._exit(1)
    except MmloadError as error:
        pipe.send(("failed", error))
    except Exception as error:
        pipe.send(("failed", BuildError(f"a build worker failed ({type(error).__name__}: {error})")))
