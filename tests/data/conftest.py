"""What lies here is data, also where it is Python: it is run by other processes, with other modules around it."""

collect_ignore_glob = ["*"]
