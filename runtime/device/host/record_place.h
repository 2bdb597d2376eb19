// Where rows of a KV record lie (runtime/device/kv_record.h), in bytes from its begin.
#pragma once

#include <cstddef>

#include "runtime/device/kv_record.h"

namespace kvrun::host {

// Of K or V. Row and scales of entry e of head h: those with number h * group_tokens + e.
struct PlanePlace {
  PlanePlace(const KvRecordShape& record, bool is_value)
      : type(is_value ? record.v_type : record.k_type),
        begin(is_value ? size_t{record.v_begin_words()} * 4 : 0),
        row_bytes(size_t{record.row_words(type)} * 4),
        scales_begin(size_t{record.scales_begin_words()} * 4 + (is_value ? record.v_scales_begin() * 2 : 0)),
        row_scales_bytes(size_t{record.row_scales(type)} * 2) {}

  size_t row(size_t number) const { return begin + number * row_bytes; }
  size_t scales(size_t number) const { return scales_begin + number * row_scales_bytes; }

  KvType type;
  size_t begin;
  size_t row_bytes;
  size_t scales_begin;
  size_t row_scales_bytes;
};

}  // namespace kvrun::host
