"""Which server a request goes to, worked out by hand."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.rollout.loads import FIRST_REST_SECONDS, Loads, Wish


def wishes(loads: Loads, *names: str, now: float = 0.0) -> list[int | None]:
    return [loads.ask(Wish(environment="e", affinity=name), now) for name in names]


def test_new_episodes_go_where_the_least_is_under_way() -> None:
    assert wishes(Loads(3), "a", "b", "c", "d") == [0, 1, 2, 0]


def test_an_episode_stays_with_its_server() -> None:
    loads = Loads(2)
    assert wishes(loads, "a", "b", "b", "b") == [0, 1, 1, 1]
    assert wishes(loads, "c", "b") == [0, 1]


def test_a_full_server_gets_no_more_than_it_took_and_a_little_more_with_each_answer() -> None:
    loads = Loads(1)
    asked = [Wish(environment="e") for _ in range(4)]
    for wish in asked:
        loads.ask(wish, 0.0)
    loads.full(0, asked[3], 0.0)
    loads.full(0, asked[2], 0.0)  # it has two
    later = FIRST_REST_SECONDS
    waiting = [Wish(environment="e") for _ in range(4)]
    assert [loads.ask(wish, later) for wish in waiting] == [None] * 4
    assert list(loads.admitted(later)) == []
    loads.answered(0, asked[0])
    assert list(loads.admitted(later)) == [(waiting[0], 0)]
    loads.answered(0, asked[1])
    loads.answered(0, waiting[0])  # 2 + 1/2 + 1/2.5 + ...: with three answers there is room for a third
    assert list(loads.admitted(later)) == [(waiting[1], 0), (waiting[2], 0), (waiting[3], 0)]


def test_a_full_server_is_left_alone_as_long_as_it_asks_and_its_episodes_wait_for_it_if_that_is_short() -> None:
    loads = Loads(2)
    home = Wish(environment="e", affinity="a")
    assert loads.ask(home, 0.0) == 0
    loads.full(0, home, 0.0, named_seconds=0.5)
    again = Wish(environment="e", affinity="a")
    assert loads.ask(again, 0.1) is None
    assert loads.wakes_at(0.1) == 0.5
    assert list(loads.admitted(0.4)) == []
    assert list(loads.admitted(0.5)) == [(again, 0)]


def test_episodes_move_when_their_server_is_gone_or_wants_a_long_rest() -> None:
    for named_seconds in (0.0, 30.0):
        loads = Loads(2)
        home = Wish(environment="e", affinity="a")
        assert loads.ask(home, 0.0) == 0
        waiting = Wish(environment="e", affinity="a")
        if named_seconds:
            loads.full(0, home, 0.0, named_seconds)
        else:
            loads.gone(0, home, 0.0)
        assert loads.ask(waiting, 0.0) == 1
        assert wishes(loads, "a") == [1]


def test_a_server_that_was_gone_is_tried_by_one_request_and_longer_rests_follow() -> None:
    loads = Loads(1)
    now, rests = 0.0, []
    for _ in range(4):
        first, second = Wish(environment="e"), Wish(environment="e")
        assert (loads.ask(first, now), loads.ask(second, now)) == (0, None if rests else 0)
        loads.gone(0, first, now)
        if rests:
            loads.forget(second)
        else:
            loads.gone(0, second, now)  # together: one failure
        wakes_at = loads.wakes_at(now)
        assert wakes_at is not None
        rests.append(round((wakes_at - now) / FIRST_REST_SECONDS))
        now = wakes_at
    assert rests == [1, 2, 4, 8]
    assert loads.num_waiting == 0


def test_a_free_place_goes_to_the_environment_that_has_the_least_under_way() -> None:
    loads = Loads(1)
    fast = [Wish(environment="fast") for _ in range(6)]
    for wish in fast[:3]:
        loads.ask(wish, 0.0)
    loads.full(0, fast[2], 0.0)
    now = FIRST_REST_SECONDS
    slow = Wish(environment="slow")
    for wish in (*fast[3:], slow):
        assert loads.ask(wish, now) is None
    loads.answered(0, fast[0])
    assert [wish for wish, _ in loads.admitted(now)] == [slow]
    loads.answered(0, fast[1])
    assert next(iter(loads.admitted(now)))[0] is fast[3]


def test_twice_the_weight_gets_twice_the_places() -> None:
    loads = Loads(1)
    first = Wish(environment="a")
    loads.ask(first, 0.0)
    loads.gone(0, first, 0.0)
    now = FIRST_REST_SECONDS
    for _ in range(9):
        loads.ask(Wish(environment="a"), now)
        loads.ask(Wish(environment="b", weight=2.0), now)
    loads._servers[0].room = 9.0
    given = [wish.environment for wish, _ in loads.admitted(now)]
    assert (1 + given.count("a"), given.count("b")) == (3, 6)  # the first was given its place at once


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["ask", "answered", "full", "gone", "left", "forget"]), st.integers(0, 5)), max_size=60))
def test_every_wish_gets_a_place_once_however_servers_behave(num_servers: int, events: list[tuple[str, int]]) -> None:
    loads, now = Loads(num_servers), 0.0
    placed: list[tuple[Wish, int]] = []
    waiting: list[Wish] = []
    for verb, number in events:
        now += number * 0.3
        if verb == "ask":
            wish = Wish(environment="ab"[number % 2], affinity=str(number) if number else None)
            server = loads.ask(wish, now)
            if server is None:
                waiting.append(wish)
            else:
                placed.append((wish, server))
        elif verb == "forget" and waiting:
            loads.forget(waiting.pop(number % len(waiting)))
        elif placed and verb != "forget":
            wish, server = placed.pop(number % len(placed))
            if verb in ("full", "gone"):
                getattr(loads, verb)(server, wish, now)
            else:
                getattr(loads, verb)(server, wish)
        for wish, server in loads.admitted(now):
            waiting.remove(wish)
            placed.append((wish, server))
        assert loads.num_waiting == len(waiting)
        assert [loads.under_way(server) for server in range(num_servers)] == [sum(at == server for _, at in placed) for server in range(num_servers)]
    # Whatever happened, all that wait are served once what is under way is answered.
    while placed or waiting:
        now = max(now, loads.wakes_at(now) or -math.inf)
        before = len(placed) + len(waiting)
        if placed:
            wish, server = placed.pop()
            loads.answered(server, wish)
        for wish, server in loads.admitted(now):
            waiting.remove(wish)
            placed.append((wish, server))
        assert len(placed) + len(waiting) < before or placed
