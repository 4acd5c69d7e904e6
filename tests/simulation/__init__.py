"""The whole protocol on a fake clock, a fake network and a fake disk, driven by one seed and watched by an observer.

    scenario    what one seed decides: laws, sizes, fault rates
    clockwork   fake time; actors and their scripts; requests over a bad network
    actors      buffer, workers, scorer, servers, learners: small, and as forgetful as real processes
    witness     what outsiders were told, and what really happened
    audit       every record the buffer decides, looked at by an account of its own
    world       puts them together, breaks things, and says at the end whether every promise held
    outside     a world without a learner: items that form groups by arrival, reads, leases; it has its own books
    plants      known bugs, to show that they would be seen

`python -m tests.simulation --seeds 300` runs many seeds; a failing one prints its history and the command that repeats it.
"""
