"""The nouns of penstock: everything that crosses the border between two parts, as frozen dataclasses.

Read it as a glossary, in this order:

- `tokens`: what a model saw and said. `Segment`, `Trace`, `Message`, `VersionRun`.
- `episodes`: who did it, for what, how it went. `Problem`, `Rollout`, `Turn`, `StepData`, `Annotation`, `Group`.
- `ledger`: what the buffer keeps about it. `GroupRecord`, `MemberRecord`, `Plan`, `Outcome`, `Version`, `Laws`.
- `batch`: what the learner computes with. `Sample`, `RlExample`, `WeightManifest`.

Nothing here has a clock, a file or a socket, and nothing here imports another part.
"""

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
from penstock.types.ledger import (
    AnnotationRecord,
    CheckpointRecord,
    CutRequest,
    GroupRecord,
    GroupState,
    JournalEntry,
    Laws,
    MemberRecord,
    MemberState,
    Outcome,
    Payload,
    Plan,
    PlannedGroup,
    Record,
    RolloutRecord,
    RunRecord,
    SessionRecord,
    TermRecord,
    Version,
)
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
)

__all__ = [
    "Annotation",
    "AnnotationRecord",
    "BoolArray",
    "CheckpointRecord",
    "CutRequest",
    "Evidence",
    "Float32Array",
    "Float64Array",
    "Group",
    "GroupRecord",
    "GroupState",
    "InferenceMetadata",
    "Int32Array",
    "JournalEntry",
    "Json",
    "Laws",
    "Mark",
    "MemberRecord",
    "MemberState",
    "Message",
    "NamedArrays",
    "Outcome",
    "Payload",
    "Plan",
    "PlannedGroup",
    "Problem",
    "Purpose",
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
    "Source",
    "StepData",
    "StepFacts",
    "TensorEntry",
    "TermRecord",
    "Trace",
    "Turn",
    "Usage",
    "Version",
    "VersionRun",
    "WeightManifest",
]
