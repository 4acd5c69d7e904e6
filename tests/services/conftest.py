"""Processes that all tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.services.buffers import Process
from tests.services.gateway_stage import Stage, buffer_alone, counting
from tests.unit.gateway.stub_engine import StubEngine


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A buffer, for tests that leave it alive."""
    running = Process(tmp_path_factory.mktemp("buffer"))
    yield running
    running.kill()


# For tests that start gateways of their own


@pytest.fixture(scope="module")
def engine() -> Iterator[StubEngine]:
    """An engine that says what it is told to."""
    stub = StubEngine(counting)
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, engine: StubEngine) -> Iterator[Stage]:
    """A buffer that all tests of a file share."""
    with buffer_alone(tmp_path_factory.mktemp("home"), engine.url) as made:
        yield made


@pytest.fixture
def stage(home: Stage, engine: StubEngine) -> Iterator[Stage]:
    """The shared buffer, and no gateway yet."""
    engine.forget()
    with home.without_gateway() as alone:
        yield alone
