"""The state of a loader: its position, and what determines the order of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmload.errors import shown
from mmload.store.row_numbers import as_integer

State = dict[str, int | str]

_OPTIONAL = ("subset", "sampler", "version")
_OF_VERSION = ("rows", "dataset")  # what another version of a dataset may have otherwise


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
