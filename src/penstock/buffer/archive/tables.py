"""Rows as Arrow tables. Columns of tokens go as arrays: as lists of numbers they would hold up the whole process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.buffer.archive.rows import NO_VERSION, Row
from penstock.buffer.archive.schema import arrow_schema

_TOKEN_COLUMNS = ("ids", "logprobs", "token_versions")


def table_of(rows: Sequence[Row]) -> Any:
    """The table of some rows."""
    import pyarrow

    columns = []
    for field in arrow_schema():
        values = [row[field.name] for row in rows]
        columns.append(_tokens(values, field.type) if field.name in _TOKEN_COLUMNS else pyarrow.array(values, field.type))
    return pyarrow.Table.from_arrays(columns, schema=arrow_schema())


def _tokens(arrays: Sequence[npt.NDArray[Any] | None], kind: Any) -> Any:
    """A list column; None is null, and so is a number that stands for nothing."""
    import pyarrow

    lengths = [0 if array is None else len(array) for array in arrays]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    is_null = np.array([array is None for array in arrays] + [False])
    known = [array for array in arrays if array is not None]
    values = np.concatenate(known) if known else np.empty(0, kind.value_type.to_pandas_dtype())
    missing = np.isnan(values) if values.dtype.kind == "f" else values == NO_VERSION
    flat = pyarrow.array(values, kind.value_type, mask=missing)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, mask=is_null), flat, type=kind)
