"""Parts by name."""

from __future__ import annotations

import pytest

from penstock.config import plugins
from penstock.errors import ConfigError


def test_a_built_in_name_is_found_without_looking_through_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: looked.append(group) or ())
    assert plugins.named_part("one", {"one": 1}, "penstock.losses", key="k") == 1
    plugins.check_part_name("one", ["one"], "penstock.losses", key="k")
    assert looked == []
    with pytest.raises(ConfigError, match="k 'two' is unknown"):
        plugins.named_part("two", {"one": 1}, "penstock.losses", key="k")
    assert looked == ["penstock.losses"]
