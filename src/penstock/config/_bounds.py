"""Checks for `__post_init__` of config sections. The loader puts the section's own key in front of their messages."""

from __future__ import annotations

from penstock.errors import ConfigError


def check_range(key: str, value: float | None, *, least: float | None = None, above: float | None = None, most: float | None = None) -> None:
    """Raise `ConfigError` if `value` is below `least`, not above `above`, or above `most`. None passes.

    >>> check_range("max_lag", -1, least=0)
    Traceback (most recent call last):
    penstock.errors.ConfigError: max_lag: must be 0 or more, got -1
    """
    if value is None:
        return
    wrong = (least is not None and value < least) or (above is not None and value <= above) or (most is not None and value > most)
    if wrong:
        words = [f"{least} or more" if least is not None else "", f"above {above}" if above is not None else "", f"at most {most}" if most is not None else ""]
        raise ConfigError(f"{key}: must be {' and '.join(filter(None, words))}, got {value}")
