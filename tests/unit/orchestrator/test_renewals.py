from penstock.orchestrator.renewals import SILENT_SECONDS, Renewals
from penstock.process.identity import ProcessId

ONE, TWO = ProcessId(pid=1, started_ticks=7), ProcessId(pid=2, started_ticks=8)


def test_a_learner_that_has_renewed_and_stops_hangs() -> None:
    renewals = Renewals()
    assert [renewals.is_hung(ONE, expires_at, expires_at) for expires_at in (0.0, 2.0, 4.0)] == [False] * 3
    assert not renewals.is_hung(ONE, 4.0, 3.9 + SILENT_SECONDS)
    assert renewals.is_hung(ONE, 4.0, 4.0 + SILENT_SECONDS)


def test_a_life_that_loads_is_waited_for_under_the_term_of_the_life_before_and_its_own() -> None:
    renewals = Renewals()
    for expires_at in (0.0, 2.0, 4.0):
        renewals.is_hung(ONE, expires_at, expires_at)
    assert not renewals.is_hung(None, 4.0, 100.0)
    assert not renewals.is_hung(TWO, 4.0, 101.0)
    assert not renewals.is_hung(TWO, 4.0, 500.0)
    assert not renewals.is_hung(TWO, 510.0, 501.0)  # it has taken its term, and loads a checkpoint
    assert not renewals.is_hung(TWO, 510.0, 900.0)
    assert not renewals.is_hung(TWO, 912.0, 902.0)
    assert renewals.is_hung(TWO, 912.0, 902.0 + SILENT_SECONDS)


def test_a_learner_is_not_to_blame_for_a_buffer_that_is_away() -> None:
    renewals = Renewals()
    for expires_at in (0.0, 2.0, 4.0):
        renewals.is_hung(ONE, expires_at, expires_at)
    renewals.not_seen(90.0)
    assert not renewals.is_hung(ONE, 4.0, 91.0)
    assert renewals.is_hung(ONE, 4.0, 90.0 + SILENT_SECONDS)
