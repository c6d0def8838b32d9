"""The state of a loader: its position in its epochs, and what determines the order of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmload.errors import UsageError, shown
from mmload.store.row_numbers import as_integer

State = dict[str, int | str]

_OPTIONAL = ("subset", "sampler", "version")
_OF_VERSION = ("rows", "dataset")  # what another version of a dataset may have otherwise


@dataclass
class Position:
    """Position of a pass over an epoch.

    Attributes:
        epoch: number of the epoch.
        offset: samples of the epoch, of all ranks together, that were used before this pass.
        used: rows that this pass has yielded.
    """

    epoch: int
    offset: int
    used: int = 0


class Progress:
    """Position of a loader, of several passes the one that was begun last, and where its next epoch begins.

    Attributes:
        epoch: number of the next epoch.
        offset: samples of it that were used already.
        is_given: whether ``set_epoch`` or a state has said which epoch is next.
    """

    def __init__(self) -> None:
        self.epoch = self.offset = 0
        self.is_given = False
        self._pass = Position(0, 0)
        # Set by set_epoch, with the rows used then; it is the position until the pass yields another batch.
        self._chosen: tuple[Position, int] | None = None
        self._resumed = (-1, 0)  # the epoch of a loaded state, and its samples, until an epoch begins

    def choose(self, epoch: int) -> None:
        """Makes an epoch the next one; if it was resumed, it continues from there."""
        self.is_given = True
        if epoch != self.epoch:
            resumed, samples = self._resumed
            self.epoch, self.offset = epoch, samples if epoch == resumed else 0
        self._chosen = Position(self.epoch, self.offset), self._pass.used

    def skip(self, samples: int) -> None:
        """Begins the next epoch after some of its samples.

        Raises:
            UsageError: if it is not known which epoch that is, or a state says another position.
        """
        if not self.is_given:
            raise UsageError("it is not known which epoch to skip batches of; call loader.set_epoch(epoch) before")
        if self.offset not in (0, samples):
            raise UsageError(
                f"{samples} samples are to be skipped, and the loader's state is after {self.offset}; load the state, "
                "which suffices, or skip"
            )
        self.offset = samples

    def begin(self, position: Position) -> None:
        """Begins a pass over the next epoch."""
        self.epoch, self.offset, self.is_given = position.epoch + 1, 0, False
        self._pass, self._chosen, self._resumed = position, None, (-1, 0)

    def resume(self, saved: tuple[int, int], epoch: int, samples: int) -> None:
        """Continues after samples of an epoch; ``saved`` is what the state says, the same or the end of an epoch."""
        self.epoch, self.offset, self.is_given = epoch, samples, True
        self._pass, self._chosen, self._resumed = Position(epoch, samples), None, saved

    def current(self) -> tuple[Position, bool]:
        """Returns the position, and whether it is in an epoch that was begun."""
        if self._chosen is not None and self._chosen[1] == self._pass.used:
            return self._chosen[0], False
        return self._pass, self.epoch > self._pass.epoch


@dataclass(frozen=True, kw_only=True)
class OrderIdentity:
    """Properties that two loaders must share for one to continue an epoch of the other.

    Attributes:
        order: the kind of order, with its block sizes or the sampler's class.
        rows: number of rows.
        seed: seed of the loader.
        dataset: a digest of what the rows are made of.
        subset: a digest of the subset's rows; None: all rows.
        sampler: a digest of a sampler's rows, or how many it yields; None: no sampler.
        version: number of the dataset's version; None: of several datasets.
    """

    order: str
    rows: int
    seed: int
    dataset: int
    subset: int | None
    sampler: int | None
    version: int | None = None


def state_of(epoch: int, samples: int, identity: OrderIdentity) -> State:
    """Returns the state as a flat dict: an epoch, and its samples that all ranks together have used.

    Keys that do not apply are left out.
    """
    state: State = {"epoch": epoch, "samples": samples, **_required(identity)}
    optional = {name: getattr(identity, name) for name in _OPTIONAL}
    return state | {name: value for name, value in optional.items() if value is not None}


def position_in(
    state: Mapping[str, object], identity: OrderIdentity, *, length: int, other_version: bool = False
) -> tuple[int, int]:
    """Returns the epoch of a state, and how many of its samples are used, of ``length`` of all ranks together.

    ``other_version`` continues with other rows, such as those of another version of the dataset.

    Raises:
        ValueError: if it is not such a state, or the state of a loader with another order or other rows. The rows of a
            sampler are not compared: see :func:`check_sampler`.
    """
    expected = _required(identity)
    required = ("epoch", "samples", *expected)
    if not isinstance(state, Mapping) or set(state) - set(_OPTIONAL) != set(required):
        keys = sorted(map(str, state)) if isinstance(state, Mapping) else state
        raise ValueError(f"the state has {keys!r}, expected {', '.join(required)}; give what state_dict() returned")
    if not other_version and _version_in(state) not in (None, identity.version):
        raise ValueError(
            f"the state is of version {state['version']!r} of the dataset, this loader reads version "
            f"{identity.version}; open that one, as in mmload.open(path, version={state['version']!r}), or give "
            "other_version=True"
        )
    for name, expected_value in expected.items():
        if other_version and name in _OF_VERSION:
            continue
        got: object = state[name] if name == "order" else _integer(name, state[name])
        if got != expected_value:
            raise ValueError(
                f"the state has {name} {shown(state[name])}, this loader has {expected_value!r}; resume with the same"
            )
    if state.get("subset") != identity.subset and not other_version:
        raise ValueError(
            f"the state is of {_shown(state.get('subset'))}, this loader reads {_shown(identity.subset)}; "
            "resume with the same rows"
        )
    epoch, samples = (_integer(name, state[name]) for name in ("epoch", "samples"))
    if other_version:
        samples = min(samples, length)
    if samples > length:
        raise ValueError(f"the state has samples {samples}, an epoch has {length}; resume with the same order")
    return epoch, samples


def check_sampler(state: Mapping[str, object], identity: OrderIdentity) -> None:
    """Checks that an epoch continues with the same rows; raises ValueError. A list may change only between epochs."""
    if state.get("sampler") != identity.sampler:
        raise ValueError(
            f"the state is in the middle of an epoch of sampler {state.get('sampler')}, this loader has "
            f"{identity.sampler}; resume with the same rows, or with a sampler of the same length"
        )


def seed_in(state: Mapping[str, object], default: int) -> int:
    """Returns the seed of a state; the default if it has none that a loader can have."""
    seed = as_integer(state.get("seed")) if isinstance(state, Mapping) else None
    return seed if seed is not None and 0 <= seed < 2**64 else default


def _version_in(state: Mapping[str, object]) -> int | None:
    """Returns the dataset's version in a state; None in one of several datasets."""
    return _integer("version", state["version"]) if "version" in state else None


def _required(identity: OrderIdentity) -> State:
    return {"rows": identity.rows, "seed": identity.seed, "order": identity.order, "dataset": identity.dataset}


def _integer(name: str, value: object) -> int:
    number = as_integer(value)
    if number is None or number < 0:
        raise ValueError(f"the state has {name} {shown(value)}, expected an integer from 0")
    return number


def _shown(subset: object) -> str:
    return "all rows" if subset is None else f"subset {subset!r}"
