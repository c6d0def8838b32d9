"""How shards get run: on this machine, in threads inside a process and, where cores are many, in processes over shards.

Comes in: a job, a picklable function that builds one shard from its plan, and the plans. Goes out: what the job
returned for each. An engine only decides where a shard is built, never what is in it. A worker that dies ends the run
at once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from mmload.errors import BuildError, MmloadError, UsageError
from mmload.shards import ShardPlan, Told
from mmload.sources import SourceSplit
from mmload.store import Seal
from mmload.threads import MOST_THREADS, available_cores, check_threads, single_op_pool

CORES_A_PROCESS = 8
"""Threads share one interpreter lock: a row holds it for about 0.1 ms of the 2 ms it takes, so one process feeds
8 cores and more; a machine with more of them gets more processes."""


class Job(Protocol):
    """Builds one shard. Duties: a pure function of the plan; picklable."""

    def common(self) -> Job:
        """What every worker process is sent once: the job without what goes along with each plan."""

    def samples(self, plan: ShardPlan) -> SourceSplit | None:
        """What a worker process needs for this plan besides the common job; None: nothing."""

    def of(self, plan: ShardPlan, samples: SourceSplit) -> Job:
        """In the worker, the job for this plan alone."""

    def attend(self) -> object:
        """Told once in each worker process; what it returns is kept while the worker lives."""

    def __call__(self, plan: ShardPlan, pool: ThreadPoolExecutor, threads: int, told: Told) -> Seal:
        """Build one shard with the threads of the pool."""


class Engine(Protocol):
    """Runs shards somewhere. Duties: every plan once, in any order and place; nothing left running when it returns."""

    def run(self, job: Job, plans: Sequence[ShardPlan], told: Told) -> list[Seal]:
        """Build the shards.

        Args:
            job: what builds one.
            plans: which.
            told: called in this thread as it goes on; what it raises ends the run.

        Returns:
            The seals in the order of the plans.
        """


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """This machine: ``processes`` over shards, each with ``threads``. One process is this one.

    Attributes:
        threads: decoding threads of each process; None shares the available cores out.
        processes: None takes one for every 8 cores.

    Raises:
        UsageError: if a number cannot be meant.
    """

    threads: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        check_threads(self.threads)
        if self.processes is not None and (type(self.processes) is not int or not 1 <= self.processes <= MOST_THREADS):
            raise UsageError(f"processes is {self.processes!r}; use 1 to {MOST_THREADS}")

    def run(self, job: Job, plans: Sequence[ShardPlan], told: Told) -> list[Seal]:
        """Build the shards; see :class:`Engine`.

        Raises:
            BuildError: if a worker process dies, or the job cannot be sent to one.
            MmloadError: whatever the job raises.
        """
        if not plans:
            return []
        cores = available_cores()
        processes = min(self.processes or -(-cores // CORES_A_PROCESS), len(plans))
        threads = self.threads or max(1, cores // processes)
        if processes == 1:
            return _run_here(job, plans, told, threads)
        return _Crew(job, plans, told, processes, threads).run()


def _run_here(job: Job, plans: Sequence[ShardPlan], told: Told, threads: int) -> list[Seal]:
    pool = single_op_pool(threads, "mmload-build")
    try:
        return [job(plan, pool, threads, told) for plan in plans]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Crew:
    """Worker processes and what they are busy with. They are spawned: a fork would copy torch's threads in mid-step."""

    def __init__(self, job: Job, plans: Sequence[ShardPlan], told: Told, processes: int, threads: int) -> None:
        self.job, self.plans, self.told = job, plans, told
        self.waiting = list(reversed(range(len(plans))))
        self.seals: dict[int, Seal] = {}
        self.busy: dict[Connection, int] = {}
        self.workers: dict[Connection, BaseProcess] = {}
        self.size, self.threads = processes, threads

    def run(self) -> list[Seal]:
        try:
            common = _pickled(self.job.common())
            for _ in range(self.size):
                self._hire()
            self._brief(common)
            del common
            while len(self.seals) < len(self.plans):
                self._listen()
        finally:
            self._dismiss()
        return [self.seals[number] for number in range(len(self.plans))]

    def _hire(self) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        worker = context.Process(target=_work, args=(there, self.threads), daemon=True)
        with interrupts_blocked():
            worker.start()
        there.close()
        self.workers[here] = worker

    def _brief(self, common: bytes) -> None:
        """Tell every worker what to do; once all are starting, as each takes it only when it has imported torch."""
        for pipe in self.workers:
            try:
                pipe.send_bytes(common)
            except OSError as error:
                raise self._death(pipe) from error
            self._next(pipe)

    def _next(self, pipe: Connection) -> None:
        """Give a worker its next plan, if there is one, and the samples of that; all of a million would be 80 MB."""
        if self.waiting:
            plan = self.plans[self.waiting[-1]]
            task = _pickled((plan, self.job.samples(plan)))
            self.busy[pipe] = self.waiting.pop()
            try:
                pipe.send_bytes(task)
            except OSError as error:
                raise self._death(pipe) from error

    def _listen(self) -> None:
        for pipe in wait(list(self.busy)):
            self._hear(pipe)  # type: ignore[arg-type]  # nothing but these pipes was waited for

    def _hear(self, pipe: Connection) -> None:
        try:
            kind, *body = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._death(pipe) from error
        if kind == "told":
            self.told(*body)
        elif kind == "failed":
            raise body[0]
        else:
            self.seals[self.busy.pop(pipe)] = body[0]
            self._next(pipe)

    def _death(self, pipe: Connection) -> BuildError:
        worker = self.workers[pipe]
        worker.join(5)
        code = worker.exitcode or 0
        cause = f"exit code {code}"
        if code < 0:
            name = signal.Signals(-code).name
            cause = f"signal {name}" + (", as when memory runs out" if name == "SIGKILL" else "")
        return BuildError(f"a build worker died ({cause}); run the same again to go on from the sealed shards")

    def _dismiss(self) -> None:
        """End every worker: unsealed work is worth nothing, so they are not asked."""
        for pipe, worker in self.workers.items():
            worker.kill()
            worker.join()
            worker.close()
            pipe.close()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """A worker started inside never sees Ctrl-C, from its first instruction on: the mask is inherited.

    A Ctrl-C meanwhile is kept for the end: the mask is this thread's alone, and another thread that takes the signal
    would have it raised here, between the start of a worker and the message that it waits for.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # starting it, as the first worker would, unblocks
    kept: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: kept.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if kept:
            signal.raise_signal(signal.SIGINT)


def _pickled(message: object) -> bytes:
    try:
        return pickle.dumps(message)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise BuildError(f"the source cannot be sent to worker processes ({error}); build with 1 process") from error


def _work(pipe: Connection, threads: int) -> None:
    """A worker's life: plans in, seals out, until it is killed or its build is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the build itself ends its workers
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        job: Job = pickle.loads(pipe.recv_bytes())
        attending = job.attend()  # noqa: F841  # held, not used
        pool = single_op_pool(threads, "mmload-build")
        while True:
            plan, samples = pickle.loads(pipe.recv_bytes())
            own = job if samples is None else job.of(plan, samples)
            pipe.send(("sealed", own(plan, pool, threads, lambda *counts: pipe.send(("told", *counts)))))
    except (EOFError, BrokenPipeError):
        os._exit(1)
    except MmloadError as error:
        pipe.send(("failed", error))
    except Exception as error:
        pipe.send(("failed", BuildError(f"a build worker failed ({type(error).__name__}: {error})")))


def _die_with_parent() -> None:
    """End this process the moment its build ends, however that was."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)
