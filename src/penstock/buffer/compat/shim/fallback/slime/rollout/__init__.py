"""See `rm_hub`."""
