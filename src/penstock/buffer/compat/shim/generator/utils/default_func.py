"""What the buffer does where a generator has no function of its own, for generators that do a little more than that."""

from penstock.buffer.compat.defaults import (
    default_filter_item,
    default_get_group_data_meta_info,
    default_is_valid_group,
    default_normalize_group_data,
    default_pad_group_data,
)

__all__ = [
    "default_filter_item",
    "default_get_group_data_meta_info",
    "default_is_valid_group",
    "default_normalize_group_data",
    "default_pad_group_data",
]
