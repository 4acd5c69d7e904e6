import penstock.buffer.store._seen as seen_module
from penstock.buffer.store._seen import Seen


def test_a_key_that_was_added_is_never_denied_however_many_there_are(monkeypatch) -> None:
    monkeypatch.setattr(seen_module, "_FIRST_BITS", 1 << 10)
    seen = Seen()
    for number in range(5000):
        seen.add("run", f"uid-{number}")
    assert all(seen.may_have("run", f"uid-{number}") for number in range(5000))


def test_nearly_every_unknown_key_is_known_to_be_unknown() -> None:
    seen = Seen()
    for number in range(5000):
        seen.add("run", f"uid-{number}")
    assert sum(seen.may_have("run", f"other-{number}") for number in range(5000)) < 100
    assert sum(seen.may_have("another", f"uid-{number}") for number in range(5000)) < 100


def test_text_that_is_no_utf8_is_a_key_like_any_other() -> None:
    seen = Seen()
    seen.add("run", "\ud800")
    assert seen.may_have("run", "\ud800")
