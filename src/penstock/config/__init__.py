"""Loading and checking of configs. Each part declares its section, a frozen dataclass, beside itself; this reads YAML into it and says what is wrong.

    config = load(Path("run.yaml"), ["learner.learning_rate=1e-4"], RunConfig)

`dump` writes the resolved config, `reference` makes the page that lists all keys.
"""

from penstock.config._addresses import server_root
from penstock.config._bounds import check_range
from penstock.config._load import dump, load
from penstock.config._reference import page, reference

__all__ = ["check_range", "dump", "load", "page", "reference", "server_root"]
