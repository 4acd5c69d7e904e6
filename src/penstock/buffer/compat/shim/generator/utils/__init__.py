"""Helpers of generators."""

from .._folders import extended

__path__ = extended(__path__, "utils")
