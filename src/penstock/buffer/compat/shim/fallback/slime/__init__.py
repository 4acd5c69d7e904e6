"""A stand-in for the package `slime` where it is not installed: the one function that its own generator imports."""
