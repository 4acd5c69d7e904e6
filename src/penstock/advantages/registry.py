"""Estimators by name: the built-in ones, those that installed packages offer, and `module:function`."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from penstock.advantages._columns import nearest
from penstock.advantages.copo import copo
from penstock.advantages.declaration import Declaration, Estimator, declaration
from penstock.advantages.dr_grpo import dr_grpo
from penstock.advantages.gae import gae
from penstock.advantages.gigpo import gigpo
from penstock.advantages.grpo import grpo
from penstock.advantages.maxrl import maxrl
from penstock.advantages.opo import opo
from penstock.advantages.reinforce_pp import reinforce_pp
from penstock.advantages.remax import remax
from penstock.advantages.rloo import rloo
from penstock.advantages.rlvcr import rlvcr
from penstock.advantages.slime_normalize import slime_normalize

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "remax": remax,
    "opo": opo,
    "maxrl": maxrl,
    "slime_normalize": slime_normalize,
    "gae": gae,
    "gigpo": gigpo,
    "rlvcr": rlvcr,
    "copo": copo,
}

ENTRY_POINTS = "penstock.advantages"


def estimator(name: str) -> Estimator:
    """The estimator of that name: built-in, or an entry point of the group `penstock.advantages`, or `module:function`.

    Built-in names come first, so that an installed package cannot change what a config means. ValueError if nothing has the name (it
    suggests the nearest), if the module cannot be imported, or if what it names cannot be called.

    >>> estimator("grpo")([1.0, 0.0], [0, 0], norm="mean_norm")
    array([ 0.5, -0.5])
    """
    if not isinstance(name, str):
        raise ValueError(f"estimator is {name!r}; it must be a name or module:function")
    if name in ESTIMATORS:
        return ESTIMATORS[name]
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return _callable(_loaded(offered[name]), name)
    if ":" in name:
        return _callable(_imported(name), name)
    known = [*ESTIMATORS, *sorted(offered)]
    raise ValueError(f"estimator {name!r} is unknown, did you mean {nearest(name, known)!r}? Known: {', '.join(known)}, or module:function")


def declared(name: str) -> Declaration:
    """The estimator of that name with what it needs. ValueError as `estimator` and `declaration`.

    >>> declared("rloo").columns, declared("rloo").row.value
    (('rewards', 'group'), 'episode')
    """
    return declaration(estimator(name), name)


def _imported(name: str) -> object:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's own module does when it is imported
        raise ValueError(f"estimator {name!r}: cannot import {module_name!r} ({type(error).__name__}: {error})") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        words = [word for word in vars(module) if not word.startswith("_")]
        hint = f", did you mean {nearest(attribute, words)!r}?" if words else ""
        raise ValueError(f"estimator {name!r}: {module_name!r} has no {attribute!r}{hint}") from None


def _loaded(point: EntryPoint) -> object:
    try:
        return point.load()
    except Exception as error:  # whatever an installed package does when it is imported
        raise ValueError(f"estimator {point.name!r}: cannot load its entry point {point.value!r} ({type(error).__name__}: {error})") from error


def _callable(found: object, name: str) -> Estimator:
    if not callable(found):
        raise ValueError(f"estimator {name!r} is {found!r}, which cannot be called")
    return found
