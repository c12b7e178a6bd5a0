// Checks of an entry's arguments: each failure is a ValueError that names argument, found and expected.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <initializer_list>
#include <ostream>

#include "sizes.h"

namespace moegen {

using tvm::ffi::TensorView;

inline constexpr DLDataType kBf16{kDLBfloat, 16, 1};
inline constexpr DLDataType kFp16{kDLFloat, 16, 1};
inline constexpr DLDataType kFp32{kDLFloat, 32, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
inline constexpr DLDataType kInt64{kDLInt, 64, 1};
inline constexpr DLDataType kUint8{kDLUInt, 8, 1};

/// Most threads a caller may ask for; guards the OpenMP runtime against nonsense.
inline constexpr Index kMaxThreads = 4096;

/// Prints a shape as `[2, 80]`.
template <class Shape>
void print_shape(std::ostream& out, const Shape& shape) {
  const char* separator = "[";
  for (const Index size : shape) {
    out << separator << size;
    separator = ", ";
  }
  out << (shape.size() == 0 ? "[]" : "]");
}

inline std::string shape_text(const tvm::ffi::ShapeView& shape) {
  std::ostringstream out;
  print_shape(out, shape);
  return out.str();
}

/// Size of dimension `axis`, checked to exist.
inline Index extent(const TensorView& tensor, const char* name, Index axis) {
  if (axis >= tensor.ndim()) {
    TVM_FFI_THROW(ValueError) << name << ": found shape " << shape_text(tensor.shape()) << ", expected more than " << axis
                              << " dimensions";
  }
  return tensor.size(axis);
}

/// Demands a contiguous CPU tensor of exactly this dtype and shape.
inline void expect(const TensorView& tensor, const char* name, DLDataType dtype, std::initializer_list<Index> shape) {
  if (tensor.device().device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << name << ": found device type " << tensor.device().device_type << ", expected a CPU tensor";
  }
  const DLDataType found = tensor.dtype();
  if (found.code != dtype.code || found.bits != dtype.bits || found.lanes != dtype.lanes) {
    TVM_FFI_THROW(ValueError) << name << ": found dtype " << tvm::ffi::DLDataTypeToString(found) << ", expected "
                              << tvm::ffi::DLDataTypeToString(dtype);
  }
  bool same = tensor.ndim() == static_cast<Index>(shape.size());
  Index axis = 0;
  for (const Index size : shape) {
    same = same && tensor.size(axis) == size;
    ++axis;
  }
  if (!same) {
    std::ostringstream expected;
    print_shape(expected, shape);
    TVM_FFI_THROW(ValueError) << name << ": found shape " << shape_text(tensor.shape()) << ", expected " << expected.str();
  }
  if (!tensor.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << name << ": found strides " << shape_text(tensor.strides()) << ", expected a contiguous tensor";
  }
}

/// Demands a usable thread count.
inline void expect_threads(Index threads) {
  if (threads < 1 || threads > kMaxThreads) {
    TVM_FFI_THROW(ValueError) << "threads: found " << threads << ", expected 1 to " << kMaxThreads;
  }
}

/// First element of a checked tensor.
template <class T>
T* data(const TensorView& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

}  // namespace moegen
