// Rows of a table by their ids.
//
// XLA takes a lookup in bfloat16 for a conversion of the whole table, and wakes
// a thread for it: 88 microseconds.

#ifndef SPECJAX_LOOKUP_H_
#define SPECJAX_LOOKUP_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace specjax {

// Of table [V, D] at ids [...]: [..., D]. Ids beyond it are its last or first.
inline xla::ffi::Error Lookup(xla::ffi::AnyBuffer table,
                              xla::ffi::Buffer<xla::ffi::S32> ids,
                              xla::ffi::Result<xla::ffi::AnyBuffer> out) {
  const int64_t rows = table.dimensions()[0];
  const int64_t size = table.size_bytes() / rows;
  auto from = static_cast<const char*>(table.untyped_data());
  auto to = static_cast<char*>(out->untyped_data());
  const int32_t* id = ids.typed_data();
  for (int64_t i = 0; i < static_cast<int64_t>(ids.element_count()); ++i) {
    int64_t row = std::clamp<int64_t>(id[i], 0, rows - 1);
    std::memcpy(to + i * size, from + row * size, size);
  }
  return xla::ffi::Error::Success();
}

}  // namespace specjax

#endif
