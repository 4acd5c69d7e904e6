"""Stand-ins for `openai`, `requests` and `tqdm`: the little of them that generators use, for machines where they are not installed."""
