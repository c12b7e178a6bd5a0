// The kernel ABI: tensors and integers as tvm-ffi's C interface passes them. Only the C header is included: the C++
// headers of tvm-ffi would take two thirds of a kernel's compile time.
#pragma once

#include <tvm/ffi/c_api.h>

#include <utility>

#include "sizes.h"

namespace moegen {

/// Why a call was refused; reaches the caller as a ValueError.
class Refusal {
 public:
  Refusal& operator<<(const char* text) {
    while (*text != '\0') {
      put(*text++);
    }
    return *this;
  }

  Refusal& operator<<(Index value) {
    char digits[20];
    Index count = 0;
    // Negative remainders keep the most negative value in range.
    for (Index rest = value; count == 0 || rest != 0; rest /= 10) {
      const Index digit = rest % 10;
      digits[count++] = static_cast<char>('0' + (digit < 0 ? -digit : digit));
    }
    if (value < 0) {
      put('-');
    }
    while (count > 0) {
      put(digits[--count]);
    }
    return *this;
  }

  /// Appends `[2, 80]`.
  Refusal& shape(const Index* sizes, Index rank) {
    *this << "[";
    for (Index axis = 0; axis < rank; ++axis) {
      *this << (axis == 0 ? "" : ", ") << sizes[axis];
    }
    return *this << "]";
  }

  const char* text() const { return text_; }

 private:
  void put(char character) {
    if (length_ + 1 < static_cast<Index>(sizeof text_)) {
      text_[length_++] = character;
    }
  }

  char text_[512] = {};
  Index length_ = 0;
};

/// A borrowed DLPack tensor; empty when the caller passed something else.
struct Tensor {
  const DLTensor* view = nullptr;
};

inline void read_argument(const TVMFFIAny& value, Index, Tensor& out) {
  if (value.type_index == kTVMFFITensor) {
    out.view = TVMFFITensorGetDLTensorPtr(value.v_obj);
  } else if (value.type_index == kTVMFFIDLTensorPtr) {
    out.view = static_cast<const DLTensor*>(value.v_ptr);
  }
}

inline void read_argument(const TVMFFIAny& value, Index position, Index& out) {
  if (value.type_index != kTVMFFIInt) {
    throw Refusal() << "argument " << position << ": found no integer, expected a 64-bit integer";
  }
  out = value.v_int64;
}

template <class Parameter>
Parameter argument(const TVMFFIAny* values, Index position) {
  Parameter out{};
  read_argument(values[position], position, out);
  return out;
}

/// Calls `kernel` with a packed call's values; returns tvm-ffi's status.
template <class... Parameters>
int call_packed(void (*kernel)(Parameters...), const TVMFFIAny* values, Index count) {
  try {
    constexpr Index expected = sizeof...(Parameters);
    if (count != expected) {
      throw Refusal() << "found " << count << " arguments, expected " << expected;
    }
    [&]<Index... Position>(std::integer_sequence<Index, Position...>) {
      kernel(argument<Parameters>(values, Position)...);
    }(std::make_integer_sequence<Index, expected>{});
    return 0;
  } catch (const Refusal& refusal) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", refusal.text());
    return -1;
  }
}

}  // namespace moegen

/// Exports `kernel`, whose parameters are moegen::Tensor and moegen::Index, under the name that tvm-ffi looks up.
#define MOEGEN_EXPORT(symbol, kernel)                                                                               \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##symbol(void*, const TVMFFIAny* values, int32_t count, TVMFFIAny*) { \
    return moegen::call_packed(kernel, values, count);                                                              \
  }
