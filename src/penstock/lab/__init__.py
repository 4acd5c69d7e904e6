"""Questions asked of a run afterwards, from its directory alone: is everything there (`verify`), and does it come out again (`replay`)."""
