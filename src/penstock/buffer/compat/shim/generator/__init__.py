"""The package that generator files import from. Modules that stand in the folders of the generators themselves come before those that are shipped."""

from ._folders import extended

__path__ = extended(__path__, "")
