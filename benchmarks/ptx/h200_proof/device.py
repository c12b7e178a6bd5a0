"""Runs a case on a GPU through the driver API, with ctypes alone."""

import ctypes
from typing import Any

import numpy as np

from benchmarks.ptx.h200_proof.scalar import Case

_DYNAMIC_SHARED = 8
_CLUSTER, _PROGRAMMATIC, _COOPERATIVE = 4, 6, 2
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2
_FORMAT_TO_ENUM = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 9: 8, 10: 9}


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    )


class Device:
    """The first GPU."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), handle)
        self.call("cuCtxSetCurrent", self.context)
        self.modules: dict[int, ctypes.c_void_p] = {}
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, handle)
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name, self.driver = name.value.decode(), version.value

    def call(self, function: str, *args: Any) -> None:
        error = getattr(self.cuda, function)(*args)
        if error:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(error, ctypes.byref(text))
            raise RuntimeError(f"{function}: {error} {(text.value or b'').decode()}")

    def module(self, text: str) -> ctypes.c_void_p:
        key = hash(text)
        if key not in self.modules:
            handle = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(handle), text.encode() + b"\0")
            self.modules[key] = handle
        return self.modules[key]

    def function(self, text: str, entry: str, smem: int) -> ctypes.c_void_p:
        """A kernel that may use ``smem`` bytes of dynamic shared memory."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module(text), entry.encode())
        if smem:
            self.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, smem)
        return function

    def allocate(self, size: int) -> int:
        """Address of new memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 256)))
        return pointer.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address: int, data: Any) -> None:
        """Copies an array to the device."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(data.ctypes.data), data.nbytes)

    def download(self, address: int, data: Any) -> None:
        """Copies from the device into an array."""
        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(address), data.nbytes)

    def synchronize(self) -> None:
        """Waits for all launches; raises RuntimeError if one failed."""
        self.call("cuCtxSynchronize")

    def launch(
        self,
        function: ctypes.c_void_p,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        smem: int,
        params: bytes,
        programmatic: bool,
        cooperative: bool,
    ) -> None:
        """Launches with a parameter block as it lies in memory."""
        chosen = [(_CLUSTER, cluster)] if cluster != (1, 1, 1) else []
        chosen += [(_PROGRAMMATIC, (1,))] if programmatic else []
        chosen += [(_COOPERATIVE, (1,))] if cooperative else []
        attributes = (_Attribute * 3)(*[_Attribute(id, 0, (ctypes.c_uint32 * 16)(*v)) for id, v in chosen])
        config = _Config(grid, block, smem, None, ctypes.addressof(attributes), len(chosen))
        buffer, size = ctypes.create_string_buffer(params, len(params)), ctypes.c_size_t(len(params))
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(buffer), _BUFFER_SIZE, ctypes.addressof(size), None
        )
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, None, extra)

    def driver_map(self, fields: dict[str, Any], address: int) -> bytes:
        """A tensor map as the driver encodes it."""
        out = (ctypes.c_uint64 * 32)()
        base = ctypes.addressof(out)
        aligned = (base + 63) // 64 * 64
        rank = len(fields["dims"])
        dims = (ctypes.c_uint64 * rank)(*fields["dims"])
        strides = (ctypes.c_uint64 * max(rank - 1, 1))(*fields["strides"])
        box = (ctypes.c_uint32 * rank)(*fields["box"])
        ones = (ctypes.c_uint32 * rank)(*([1] * rank))
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[fields["swizzle"]]
        self.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(aligned), _FORMAT_TO_ENUM[fields["format"]], rank,
            ctypes.c_void_p(address), dims, strides, box, ones, 0, swizzle, 0, 0,
        )  # fmt: skip
        return ctypes.string_at(aligned, 128)

    def run(self, case: Case, encode: Any) -> tuple[dict[int, Any], dict[str, Any]]:
        """Results by argument index, and the driver's own tensor maps with the addresses they were made for."""
        function = self.function(case.text, case.entry, case.smem)
        memory: dict[int, ctypes.c_uint64] = {}
        for k, value in enumerate(case.args):
            if isinstance(value, np.ndarray):
                memory[k] = ctypes.c_uint64(self.allocate(value.nbytes))
                self.upload(memory[k].value, value)
        addresses = {k: p.value for k, p in memory.items()}
        maps = encode(case, addresses)
        extra: dict[str, Any] = {}
        for argument, (array, fields) in case.maps.items():
            extra[f"map{argument}"] = np.frombuffer(self.driver_map(fields, addresses[array]), np.uint8)
            extra[f"address{argument}"] = np.array(addresses[array], np.uint64)
        holders = [self._argument(maps.get(k, value), memory.get(k)) for k, value in enumerate(case.args)]
        pointers = (ctypes.c_void_p * len(holders))(*[ctypes.addressof(h) for h in holders])
        attribute = _Attribute(_CLUSTER, 0, (ctypes.c_uint32 * 16)(*case.cluster))
        clustered = case.cluster != (1, 1, 1)
        config = _Config(case.grid, case.block, case.smem, None, ctypes.addressof(attribute), int(clustered))
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        self.synchronize()
        results = {}
        for k in case.outputs:
            results[k] = np.empty_like(case.args[k])
            self.download(memory[k].value, results[k])
        for pointer in memory.values():
            self.free(pointer.value)
        return results, extra

    @staticmethod
    def _argument(value: Any, pointer: Any) -> Any:
        if pointer is not None:
            return pointer
        if isinstance(value, bytes):
            return (ctypes.c_uint8 * 128).from_buffer_copy(value)
        if isinstance(value, float):
            return ctypes.c_float(value)
        if isinstance(value, np.generic) and value.nbytes == 2:
            return ctypes.c_uint16(int(value))
        return ctypes.c_uint64(int(value) & (1 << 64) - 1)
