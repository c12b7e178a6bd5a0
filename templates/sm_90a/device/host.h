// Host half of the sm_90a kernels: argument checks and the multiprocessor count.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>

#include "../../cpu/device/sizes.h"
#include "../../cuda/launch.h"

namespace moegen {

using tvm::ffi::TensorView;

inline constexpr DLDataType kBf16{kDLBfloat, 16, 1};
inline constexpr DLDataType kFp16{kDLFloat, 16, 1};
inline constexpr DLDataType kFp32{kDLFloat, 32, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
inline constexpr DLDataType kInt64{kDLInt, 64, 1};
inline constexpr DLDataType kUint8{kDLUInt, 8, 1};

template <class Shape>
std::string shape_text(const Shape& shape) {
  std::ostringstream out;
  const char* separator = "[";
  for (const Index size : shape) {
    out << separator << size;
    separator = ", ";
  }
  out << (shape.size() == 0 ? "[]" : "]");
  return out.str();
}

/// Size of dimension `axis`, checked to exist.
inline Index extent(const TensorView& tensor, const char* name, Index axis) {
  if (axis >= tensor.ndim()) {
    TVM_FFI_THROW(ValueError) << name << ": found shape " << shape_text(tensor.shape()) << ", expected more than "
                              << axis << " dimensions";
  }
  return tensor.size(axis);
}

/// Demands a contiguous tensor of exactly this dtype and shape on `device`; all arguments of a kernel share one device.
inline void expect(const TensorView& tensor, const char* name, DLDataType dtype, std::initializer_list<Index> shape,
                   DLDevice device) {
  const DLDevice found = tensor.device();
  if (found.device_type != kDLCUDA || found.device_id != device.device_id) {
    TVM_FFI_THROW(ValueError) << name << ": found device (" << found.device_type << ", " << found.device_id
                              << "), expected CUDA device " << device.device_id;
  }
  const DLDataType type = tensor.dtype();
  if (type.code != dtype.code || type.bits != dtype.bits || type.lanes != dtype.lanes) {
    TVM_FFI_THROW(ValueError) << name << ": found dtype " << tvm::ffi::DLDataTypeToString(type) << ", expected "
                              << tvm::ffi::DLDataTypeToString(dtype);
  }
  bool same = tensor.ndim() == static_cast<Index>(shape.size());
  Index axis = 0;
  for (const Index size : shape) {
    same = same && tensor.size(axis) == size;
    ++axis;
  }
  if (!same) {
    TVM_FFI_THROW(ValueError) << name << ": found shape " << shape_text(tensor.shape()) << ", expected "
                              << shape_text(shape);
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << name << ": found strides " << shape_text(tensor.strides())
                              << ", expected a contiguous tensor";
  }
}

/// First element of a checked tensor.
template <class T>
T* data(const TensorView& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

/// Blocks that cover `count` items, `per_block` each.
inline unsigned blocks(Index count, Index per_block) { return static_cast<unsigned>(ceil_div(count, per_block)); }

/// Blocks that share the chunks of a row, `per_block` at a time: enough to fill the machine when rows are few.
inline unsigned chunk_shares(Index rows, Index chunks, Index per_block, Index multiprocessors) {
  const Index wanted = ceil_div(8 * multiprocessors, rows);
  return static_cast<unsigned>(minimum(wanted, ceil_div(chunks, per_block)));
}

/// Persistent blocks for at most `items` items.
inline unsigned persistent(Index items, Index multiprocessors) {
  return static_cast<unsigned>(minimum(items, multiprocessors));
}

}  // namespace moegen
