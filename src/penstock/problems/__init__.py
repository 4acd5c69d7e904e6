"""Where problems come from: sources that give them by position, and splits that never meet.

- `ProblemSource`: `problem(pass_, index)`, the same problem whenever it is asked for.
- `Position`, `group_id`, `parse_group_id`: which problem a group is about, as the group's own id says it.
- `Split`, `split_of`: training and held-out problems, told apart by the problem itself.
- `ListedProblems`: a source over a list, in another order on each pass.
"""

from penstock.problems.listed import ListedProblems
from penstock.problems.positions import Position, group_id, parse_group_id
from penstock.problems.source import ProblemSource
from penstock.problems.splits import Split, split_of

__all__ = ["ListedProblems", "Position", "ProblemSource", "Split", "group_id", "parse_group_id", "split_of"]
