"""Settings that hold for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples on every machine, so that what fails here fails there; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
