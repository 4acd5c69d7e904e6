"""Is what a buffer holds sound? Checks that need nothing but its store and archive; `penstock verify` adds those of a run's directory.

Each check looks at one thing and gives what it looked at and what is wrong, a sentence each. Everything is counted anew from the records, by ways that
share as little as possible with those that made them.
"""

from penstock.buffer.checks.findings import Check, Held, Looked, finding
from penstock.buffer.checks.snapshot import CHECKS, check_run, check_store, snapshot
from penstock.buffer.findings import Finding, Findings

__all__ = ["CHECKS", "Check", "Finding", "Findings", "Held", "Looked", "check_run", "check_store", "finding", "snapshot"]
