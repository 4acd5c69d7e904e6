"""The nouns of penstock: everything that crosses the border between two parts, as frozen dataclasses.

Read it as a glossary, in this order:

- `tokens`: what a model saw and said. `Segment`, `Trace`, `Message`, `VersionRun`.
- `episodes`: who did it, for what, how it went. `Problem`, `Rollout`, `Turn`, `StepData`, `Annotation`, `Group`.
- `ledger`: what the buffer keeps about it. `Laws`, `RunRecord`, and all `Record`s: `groups` (`GroupRecord`, `MemberRecord`, ...), `updates` (`Plan`, `Outcome`,
  `Version`, ...), `leases`, and the bytes themselves in `kept`.
- `batch`: what the learner computes with. `Sample`, `RlExample`, `WeightManifest`.

Nothing here has a clock, a file or a socket, and nothing here imports another part.
"""

from penstock.types.arrivals import ArrivedItem, SpentGroups, spent_group
from penstock.types.batch import RlExample, Sample, TensorEntry, WeightManifest
from penstock.types.episodes import (
    Annotation,
    Group,
    Problem,
    Purpose,
    Rollout,
    RolloutStatus,
    StepData,
    Turn,
)
from penstock.types.groups import (
    AnnotationRecord,
    Arrival,
    GroupRecord,
    GroupState,
    MemberRecord,
    MemberState,
    RolloutRecord,
    all_filled,
    filled,
)
from penstock.types.kept import ArchiveFile, JournalEntry, Moved, Payload
from penstock.types.leases import LeaseRecord, LeaseRequest, LeaseState, ReaderRecord
from penstock.types.ledger import HeldSlot, Laws, Record, RunRecord, SessionRecord, Snapshot, Tally
from penstock.types.tokens import (
    BoolArray,
    Evidence,
    Float32Array,
    Float64Array,
    InferenceMetadata,
    Int32Array,
    Json,
    Mark,
    Message,
    NamedArrays,
    SamplerFacts,
    Segment,
    Source,
    StepFacts,
    Trace,
    Usage,
    VersionRun,
    kept_segments,
)
from penstock.types.updates import CheckpointRecord, CutRequest, Outcome, Plan, PlannedGroup, TermRecord, Version

__all__ = [
    "Annotation",
    "AnnotationRecord",
    "ArchiveFile",
    "Arrival",
    "ArrivedItem",
    "BoolArray",
    "CheckpointRecord",
    "CutRequest",
    "Evidence",
    "Float32Array",
    "Float64Array",
    "Group",
    "GroupRecord",
    "GroupState",
    "HeldSlot",
    "InferenceMetadata",
    "Int32Array",
    "JournalEntry",
    "Json",
    "Laws",
    "LeaseRecord",
    "LeaseRequest",
    "LeaseState",
    "Mark",
    "MemberRecord",
    "MemberState",
    "Message",
    "Moved",
    "NamedArrays",
    "Outcome",
    "Payload",
    "Plan",
    "PlannedGroup",
    "Problem",
    "Purpose",
    "ReaderRecord",
    "Record",
    "RlExample",
    "Rollout",
    "RolloutRecord",
    "RolloutStatus",
    "RunRecord",
    "Sample",
    "SamplerFacts",
    "Segment",
    "SessionRecord",
    "Snapshot",
    "Source",
    "SpentGroups",
    "StepData",
    "StepFacts",
    "Tally",
    "TensorEntry",
    "TermRecord",
    "Trace",
    "Turn",
    "Usage",
    "Version",
    "VersionRun",
    "WeightManifest",
    "all_filled",
    "filled",
    "kept_segments",
    "spent_group",
]
