// Checks of an entry's arguments: each refusal names argument, found and expected.
#pragma once

#include <initializer_list>

#include "ffi.h"
#include "sizes.h"

namespace moegen {

inline constexpr DLDataType kBf16{kDLBfloat, 16, 1};
inline constexpr DLDataType kFp16{kDLFloat, 16, 1};
inline constexpr DLDataType kFp32{kDLFloat, 32, 1};
inline constexpr DLDataType kInt32{kDLInt, 32, 1};
inline constexpr DLDataType kInt64{kDLInt, 64, 1};
inline constexpr DLDataType kUint8{kDLUInt, 8, 1};

/// Most threads a caller may ask for; guards the OpenMP runtime against nonsense.
inline constexpr Index kMaxThreads = 4096;

/// Element type as people write it: `bfloat16`, `int32`, `uint8`.
inline void print_dtype(Refusal& out, DLDataType dtype) {
  const char* kind = dtype.code == kDLInt      ? "int"
                     : dtype.code == kDLUInt   ? "uint"
                     : dtype.code == kDLFloat  ? "float"
                     : dtype.code == kDLBfloat ? "bfloat"
                                               : "another type of bits: ";
  out << kind << Index{dtype.bits};
  if (dtype.lanes != 1) {
    out << " x" << Index{dtype.lanes};
  }
}

inline const DLTensor& tensor_of(const Tensor& tensor, const char* name) {
  if (tensor.view == nullptr) {
    throw Refusal() << name << ": found no tensor, expected one";
  }
  return *tensor.view;
}

/// Size of dimension `axis`, checked to exist.
inline Index extent(const Tensor& tensor, const char* name, Index axis) {
  const DLTensor& view = tensor_of(tensor, name);
  if (axis >= view.ndim) {
    throw Refusal() << name << ": found " << Index{view.ndim} << " dimensions, expected more than " << axis;
  }
  return view.shape[axis];
}

/// True when elements lie in row-major order without gaps; strides of dimensions of size 1 do not matter.
inline bool contiguous(const DLTensor& view) {
  Index expected = 1;
  for (Index axis = view.ndim - 1; view.strides != nullptr && axis >= 0; --axis) {
    if (view.shape[axis] == 0) {
      return true;
    }
    if (view.shape[axis] != 1 && view.strides[axis] != expected) {
      return false;
    }
    expected *= view.shape[axis];
  }
  return true;
}

inline bool same_shape(const DLTensor& view, std::initializer_list<Index> shape) {
  bool same = view.ndim == static_cast<Index>(shape.size());
  for (Index axis = 0; same && axis < view.ndim; ++axis) {
    same = view.shape[axis] == shape.begin()[axis];
  }
  return same;
}

/// Demands a contiguous CPU tensor of exactly this dtype and shape.
inline void expect(const Tensor& tensor, const char* name, DLDataType dtype, std::initializer_list<Index> shape) {
  const DLTensor& view = tensor_of(tensor, name);
  if (view.device.device_type != kDLCPU) {
    throw Refusal() << name << ": found DLPack device type " << Index{view.device.device_type}
                    << ", expected a CPU tensor";
  }
  if (view.dtype.code != dtype.code || view.dtype.bits != dtype.bits || view.dtype.lanes != dtype.lanes) {
    Refusal refusal;
    refusal << name << ": found dtype ";
    print_dtype(refusal, view.dtype);
    refusal << ", expected ";
    print_dtype(refusal, dtype);
    throw refusal;
  }
  if (!same_shape(view, shape)) {
    Refusal refusal;
    refusal << name << ": found shape ";
    refusal.shape(view.shape, view.ndim) << ", expected ";
    refusal.shape(shape.begin(), static_cast<Index>(shape.size()));
    throw refusal;
  }
  if (!contiguous(view)) {
    Refusal refusal;
    refusal << name << ": found strides ";
    refusal.shape(view.strides, view.ndim) << ", expected a contiguous tensor of shape ";
    refusal.shape(view.shape, view.ndim);
    throw refusal;
  }
}

/// Demands a usable thread count.
inline void expect_threads(Index threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw Refusal() << "threads: found " << threads << ", expected 1 to " << kMaxThreads;
  }
}

/// First element of a checked tensor.
template <class T>
T* data(const Tensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.view->data) + tensor.view->byte_offset);
}

}  // namespace moegen
