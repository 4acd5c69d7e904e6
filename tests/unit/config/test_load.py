"""YAML and overrides become a config, or a sentence about the key that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import check_range, dump, load
from penstock.errors import ConfigError
from penstock.types import CutRequest, Laws


class Engine(StrEnum):
    EMBEDDED = "embedded"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    replicas: int = 1
    fraction: float | None = None

    def __post_init__(self) -> None:
        check_range("replicas", self.replicas, least=1)
        if self.fraction == 0.0:
            raise ConfigError("an environment without a share is never trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.99)
    order: Literal["oldest", "newest"] = "oldest"
    seeds: tuple[int, ...] = ()
    weights: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    name: str
    debug: bool = False
    engine: Engine = Engine.EMBEDDED
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    envs: Mapping[str, EnvConfig] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def refusal(text: str, *overrides: str, root: type = Config) -> str:
    with pytest.raises(ConfigError) as refused:
        load(text, overrides, root)
    return str(refused.value)


def test_nested_sections_are_read_with_their_defaults() -> None:
    config = load("name: demo\nengine: vllm\nlearner: {learning_rate: 1, betas: [0, 0.5], weights: a/b}\nenvs: {sort: {replicas: 2}, math: }", [], Config)
    assert config == Config(
        name="demo",
        engine=Engine.VLLM,
        learner=LearnerConfig(learning_rate=1.0, betas=(0.0, 0.5), weights=Path("a/b")),
        envs={"sort": EnvConfig(replicas=2), "math": EnvConfig()},
    )
    assert type(config.learner.learning_rate) is float


def test_a_config_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: demo")
    assert load(path, [], Config).name == "demo"


def test_overrides_are_typed_and_the_last_one_wins() -> None:
    words = [
        "learner.learning_rate=1e-4",
        "envs.sort.replicas=3",
        "debug=true",
        "learner.seeds=[1, 2]",
        "name=a=b",
        "learner.order=oldest",
        "learner.order=newest",
    ]
    config = load("name: demo\nenvs: {math: {}}", words, Config)
    assert config.learner == LearnerConfig(learning_rate=1e-4, seeds=(1, 2), order="newest")
    assert (config.debug, config.name, set(config.envs)) == (True, "a=b", {"math", "sort"})


def test_an_override_of_an_anchor_leaves_its_aliases_alone() -> None:
    config = load("name: demo\nenvs: {a: &shared {replicas: 2}, b: *shared}", ["envs.a.replicas=5"], Config)
    assert (config.envs["a"].replicas, config.envs["b"].replicas) == (5, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nlearner: {lerning_rate: 1}", "learner.lerning_rate: unknown key (value 1); did you mean learner.learning_rate?"),
        ("name: x\nlerner: {}", "lerner: unknown key (value {}); did you mean learner?"),
        ("name: x\nenvs: {sort: {zzz: 1}}", "envs.sort.zzz: unknown key (value 1); there are replicas, fraction"),
        ("debug: true", "name: missing; it must be text"),
        ("name: 5", "name: must be text, got 5; write it in quotes"),
        ("name: x\ndebug: 1", "debug: must be true or false, got 1"),
        ("name: x\ndebug: on", "debug: must be true or false, got 'on'"),
        ("name: x\nlearner: {learning_rate: 1" + "0" * 400 + "}", "learner.learning_rate: must be a number, got 1000"),
        ('name: x\ndebug: !!int ""', "line 2: the value is not of type int"),
        ('name: x\ndebug: !!float ""', "line 2: the value is not of type float"),
        ("name: x\ndebug: !!bool x", "line 2: the value is not of type bool"),
        ("name: x\ndebug: !!timestamp x", "line 2: the value is not of type timestamp"),
        ("name: x\nenvs: {sort: {replicas: true}}", "envs.sort.replicas: must be an integer, got True"),
        ("name: x\nenvs: {sort: {replicas: 2.0}}", "envs.sort.replicas: must be an integer, got 2.0"),
        ("name: x\nenvs: {sort: {replicas: 010}}", "envs.sort.replicas: must be an integer, got '010'"),
        ("name: x\nenvs: {sort: {fraction: half}}", "envs.sort.fraction: must be a number or null, got 'half'"),
        ("name: x\nenvs: {sort: {replicas: 0}}", "envs.sort.replicas: must be 1 or more, got 0"),
        ("name: x\nenvs: {sort: {fraction: 0}}", "envs.sort: an environment without a share is never trained"),
        ("name: x\nenvs: [sort]", "envs: must be keys with a section, got ['sort']"),
        ("name: x\nlearner: 5", "learner: must be a section, got 5"),
        ("name: x\nlearner: {learning_rate: .nan}", "learner.learning_rate: must be a number, got nan"),
        ("name: x\nlearner: {learning_rate: .inf}", "learner.learning_rate: must be a number, got inf"),
        ("name: x\nlearner: {order: random}", "learner.order: must be oldest or newest, got 'random'"),
        ("name: x\nlearner: {betas: [0.9]}", "learner.betas: must be a list of a number and a number, got [0.9]"),
        ("name: x\nlearner: {seeds: [1, x]}", "learner.seeds[1]: must be an integer, got 'x'"),
        ("name: x\nengine: sglang", "engine: must be embedded or vllm, got 'sglang'"),
        ("name: x\nname: y", "line 2: key 'name' stands twice"),
        ("name: x\nenvs: {1: {}}", "line 2: a key must be text, got 1"),
        ("name: [x", "line 1: expected ',' or ']'"),
        ("name: !!python/object:os.system x", "could not determine a constructor for the tag"),
        ("- name", "the config must be keys with values, got ['name']"),
        ("name: &a [*a]", "nested too deep"),
    ],
)
def test_a_wrong_config_is_refused_with_key_value_and_what_was_expected(text: str, words: str) -> None:
    assert words in refusal(text)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("debug", "an override must look like key.sub=value, got 'debug'"),
        ("learner..order=x", "an override must look like key.sub=value"),
        ("=1", "an override must look like key.sub=value"),
        ("name.first=x", "name.first: name is 'demo' and has no keys"),
        ("learner.lr=1", "learner.lr: unknown key (value 1)"),
        ("learner.seeds=[1", "learner.seeds: the value '[1' is not YAML"),
        ("learner.learning_rate=fast", "learner.learning_rate: must be a number, got 'fast'"),
    ],
)
def test_a_wrong_override_is_refused_under_its_key(word: str, words: str) -> None:
    assert words in refusal("name: demo", word)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml", [], Config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001),
        ("1E5", 100000.0),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("32_768", 32768),
        ("0x10", 16),
        ("0", 0),
        ("-7", -7),
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e", "1e"),
        ("1.2.3", "1.2.3"),
        ("0o7", "0o7"),
        ("e5", "e5"),
        ("~", None),
        ("", None),
    ],
)
def test_scalars_are_what_people_mean(text: str, value: object) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Holder:
        value: Any

    loaded = load(f"value: {text}", [], Holder).value
    assert loaded == value and type(loaded) is type(value)


TEXTS = st.text(max_size=10) | st.sampled_from(
    ["on", "1e-4", "010", "~", "null", "", "true", "1:30", "2024-01-01", "0x1", "<<", "=", "- a", "a: b", "#x", "1_0", "\x85", "a\u2028b", "\r\n", "\ufeff"]
)
CONFIGS = st.builds(
    Config,
    name=TEXTS,
    debug=st.booleans(),
    engine=st.sampled_from(Engine),
    learner=st.builds(
        LearnerConfig,
        learning_rate=st.floats(allow_nan=False, allow_infinity=False),
        betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
        seeds=st.lists(st.integers()).map(tuple),
        weights=st.none() | st.sampled_from([Path("a"), Path("/b/c d")]),
    ),
    envs=st.dictionaries(TEXTS, st.builds(EnvConfig, replicas=st.integers(1, 9), fraction=st.none() | st.floats(0.1, 1)), max_size=3),
    notes=st.dictionaries(TEXTS, TEXTS, max_size=3),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(CONFIGS)
def test_a_dumped_config_loads_back_as_the_same(config: Config) -> None:
    assert load(dump(config), [], Config) == config


@pytest.mark.parametrize(
    "config", [Laws(fractions={"math": 0.5}, annotations=("judge",)), CutRequest(budget_tokens=4096, order="newest", config={"eps": "1e-6"})]
)
def test_the_settled_sections_survive_a_dump(config: Laws | CutRequest) -> None:
    assert load(dump(config), [], type(config)) == config
