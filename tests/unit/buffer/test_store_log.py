from __future__ import annotations

import pytest
from tests.services.store_stage import ONE_OF_EACH, group, payload

from penstock.testing._log import LogCodec


def test_frames_come_back_in_order_from_bytes_alone() -> None:
    codec = LogCodec()
    first = codec.encode(ONE_OF_EACH, synced=0)
    second = codec.encode([group(1)], synced=len(first))
    frames = list(LogCodec().decode(first + second))
    assert [frame.whole for frame in frames] == [True, True]
    assert [entry.record for entry in frames[0].entries] == list(ONE_OF_EACH)
    assert [entry.record for entry in frames[1].entries] == [group(1)]
    assert [(frame.start, frame.stop, frame.synced) for frame in frames] == [(0, len(first), 0), (len(first), len(first + second), len(first))]


def test_an_empty_change_set_is_a_frame() -> None:
    (frame,) = LogCodec().decode(LogCodec().encode([], synced=0))
    assert frame.whole
    assert frame.entries == ()


def test_a_log_torn_at_any_byte_has_no_whole_frame_behind_the_tear() -> None:
    codec = LogCodec()
    first = codec.encode([group(0)], synced=0)
    log = first + codec.encode([group(1), payload("u", b"bytes")], synced=0)
    for length in range(len(log)):
        frames = list(codec.decode(log[:length]))
        assert sum(frame.whole for frame in frames) == (1 if length >= len(first) else 0)
        assert (frames[-1].stop if frames else 0) == length


@pytest.mark.parametrize("bit", [0, 7])
def test_a_flip_at_any_byte_is_noticed_and_hides_no_other_frame(bit: int) -> None:
    codec = LogCodec()
    frames = [codec.encode([group(index)], synced=0) for index in range(3)]
    start, stop = len(frames[0]), len(frames[0]) + len(frames[1])
    for offset in range(start, stop):
        log = bytearray(b"".join(frames))
        log[offset] ^= 1 << bit
        whole = [frame.entries[0].record for frame in LogCodec().decode(bytes(log)) if frame.whole]
        assert whole == [group(0), group(2)]
