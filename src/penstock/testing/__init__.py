"""Fakes that pass the same contract tests as the real parts, for tests of penstock and of what is built on it."""
