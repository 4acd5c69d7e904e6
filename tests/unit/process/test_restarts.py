from penstock.process.restarts import EXIT_CONFIG, EXIT_FINAL, GiveUp, Restart, RestartPolicy, after_death, describe_exit

POLICY = RestartPolicy(limit=3, within_seconds=10.0, pauses_seconds=(0.0, 1.0, 4.0))


def test_the_first_death_is_mended_at_once_and_later_ones_after_growing_pauses() -> None:
    assert after_death(-9, [5.0], POLICY) == Restart(0.0)
    assert after_death(-9, [5.0, 6.0], POLICY) == Restart(1.0)


def test_deaths_that_are_long_past_do_not_count() -> None:
    assert after_death(1, [5.0, 6.0, 16.5], POLICY) == Restart(0.0)
    assert after_death(1, [5.0, 6.0, 16.0], POLICY) == Restart(1.0)


def test_the_limit_of_deaths_without_progress_ends_it_and_says_how_it_died() -> None:
    assert after_death(-11, [5.0, 6.0, 7.0], POLICY) == GiveUp("died 3 times within 10 s without progress, the last time with SIGSEGV")


def test_progress_forgives_deaths_but_does_not_hurry() -> None:
    assert after_death(1, [5.0, 6.0, 7.0], POLICY, progress_seconds=5.5) == Restart(4.0)
    assert after_death(1, [5.0, 6.0, 7.0, 8.0], POLICY, progress_seconds=5.5) == GiveUp("died 3 times within 10 s without progress, the last time with exit 1")


def test_what_a_new_start_cannot_mend_is_not_started_again() -> None:
    for code in (EXIT_CONFIG, EXIT_FINAL):
        verdict = after_death(code, [5.0], POLICY)
        assert isinstance(verdict, GiveUp)
        assert f"exit {code}" in verdict.reason


def test_an_early_end_without_an_error_is_a_death_too() -> None:
    assert after_death(0, [5.0], POLICY) == Restart(0.0)
    assert describe_exit(0) == "exit 0"
