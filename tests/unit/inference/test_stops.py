from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.inference.engine.stops import TextStream, cut_at_stop, num_tail_tokens, stop_in_tail


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=30), st.lists(st.integers(1, 5), max_size=30))
def test_streamed_pieces_spell_the_whole_and_are_never_broken(text: str, sizes: list[int]) -> None:
    ids = list(text.encode())
    stream, shown, start = TextStream(decode), "", 0
    for size in sizes:
        shown += stream.push(ids[start : start + size])
        start += size
        assert text.startswith(shown)
    assert shown + stream.close(ids[start:], None) == text


@given(st.binary(max_size=60), st.integers(1, 7))
def test_bytes_that_are_no_text_stream_to_the_same_end(data: bytes, size: int) -> None:
    ids = list(data)
    stream = TextStream(decode)
    shown = "".join(stream.push(ids[start : start + size]) for start in range(0, len(ids), size))
    assert shown + stream.close([], None) == decode(ids)


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stop_text_is_found_with_its_last_token_and_never_shown(text: str, stops: list[str]) -> None:
    ids = list(text.encode())
    stream, shown = TextStream(decode, stops), ""
    for place, id in enumerate(ids):
        found = stop_in_tail(decode, ids[: place + 1][-num_tail_tokens(stops) :], stops)
        if found is not None:
            shown += stream.close([id], found)
            first = min(text.find(stop) for stop in stops if stop in text[: place + 1])
            assert shown == text[:first]
            assert not any(stop in text[:place] for stop in stops)
            return
        shown += stream.push([id])
    assert not any(stop in text for stop in stops)
    assert shown + stream.close([], None) == text


def test_what_may_become_a_stop_is_held_back() -> None:
    stream = TextStream(decode, ["END"])
    assert [stream.push([id]) for id in b"a EN"] == ["a", " ", "", ""]
    assert stream.push(b"x") == "ENx"
    assert stream.push(b"EN") == ""
    assert stream.close(b"D!", "END") == ""


def test_text_behind_a_stop_is_cut_off() -> None:
    assert cut_at_stop("one. two. three", ".") == "one"
    assert cut_at_stop("one", None) == "one"
