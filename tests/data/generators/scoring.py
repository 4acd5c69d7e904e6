"""A module beside the generator that imports it."""


def length_score(text):
    return min(len(text) / 10, 1.0)
