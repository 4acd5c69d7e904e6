"""Child processes: where they may be told to die, how they are started, watched and stopped."""
