"""Child processes: where they may be told to die, how they are started, watched, replaced and stopped.

- `points`: named places in the code at which a process can be told to die.
- `leash`: a child that does not outlive its parent.
- `identity`: which process a number means, whether it lives, what it has cost.
- `child`: one started process with its log. `logs`: the end of a log, and what is added to it.
- `restarts`: when a child that died is started again, and when it is not. Pure.
- `supervisor`: keeps children running. `health`: asks them over HTTP how they are. `spares`: a process that waits, warm, to take the next place.
- `confined`: a process that runs code nobody vouches for.
- `ports`: ports that nobody listens on.
- `threads`: calls that may hang, in threads that may be given up.
- `memory`: what a process holds, and what it may ask for.
- `garbage`: how often a busy process looks for cycles.
"""
