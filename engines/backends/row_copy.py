"""A CUDA kernel that gathers rows of device memory by an index in device memory.

CUDA's own copies take addresses when they are enqueued, so a captured copy would always read the
same rows. This is skipdec's only CUDA kernel, as PTX, which the driver compiles for its GPU. NVRTC
13.5 generated it for compute capability 7.5 from:

    extern "C" __global__ void copy_rows(
        char *target, const char *source, const long long *index, long long row_bytes) {
      char *to = target + blockIdx.x * row_bytes;
      const char *from = source + index[blockIdx.x] * row_bytes;
      if (row_bytes % 16 == 0)
        for (long long at = 16 * threadIdx.x; at < row_bytes; at += 16 * blockDim.x)
          *reinterpret_cast<uint4 *>(to + at) = *reinterpret_cast<const uint4 *>(from + at);
      else
        for (long long at = threadIdx.x; at < row_bytes; at += blockDim.x)
          to[at] = from[at];
    }
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

from ..errors import DeviceError

_THREADS = 256  # per block; a block copies one row

PTX = b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry copy_rows(
    .param .u64 copy_rows_param_0,
    .param .u64 copy_rows_param_1,
    .param .u64 copy_rows_param_2,
    .param .u64 copy_rows_param_3
)
{
    .reg .pred %p<6>;
    .reg .b16 %rs<2>;
    .reg .b32 %r<15>;
    .reg .b64 %rd<33>;

    ld.param.u64 %rd14, [copy_rows_param_0];
    ld.param.u64 %rd15, [copy_rows_param_1];
    ld.param.u64 %rd16, [copy_rows_param_2];
    ld.param.u64 %rd13, [copy_rows_param_3];
    cvta.to.global.u64 %rd1, %rd14;
    cvta.to.global.u64 %rd2, %rd15;
    mov.u32 %r2, %ctaid.x;
    cvt.u64.u32 %rd17, %r2;
    mul.lo.s64 %rd3, %rd17, %rd13;
    cvta.to.global.u64 %rd18, %rd16;
    mul.wide.u32 %rd19, %r2, 8;
    add.s64 %rd20, %rd18, %rd19;
    ld.global.u64 %rd21, [%rd20];
    mul.lo.s64 %rd4, %rd21, %rd13;
    and.b64 %rd22, %rd13, 15;
    setp.eq.s64 %p1, %rd22, 0;
    mov.u32 %r1, %tid.x;
    @%p1 bra $L__BB0_4;

    cvt.u64.u32 %rd31, %r1;
    setp.ge.s64 %p2, %rd31, %rd13;
    @%p2 bra $L__BB0_7;

    mov.u32 %r3, %ntid.x;
    cvt.u64.u32 %rd6, %r3;

$L__BB0_3:
    add.s64 %rd23, %rd31, %rd4;
    add.s64 %rd24, %rd2, %rd23;
    ld.global.u8 %rs1, [%rd24];
    add.s64 %rd25, %rd31, %rd3;
    add.s64 %rd26, %rd1, %rd25;
    st.global.u8 [%rd26], %rs1;
    add.s64 %rd31, %rd31, %rd6;
    setp.lt.s64 %p3, %rd31, %rd13;
    @%p3 bra $L__BB0_3;
    bra.uni $L__BB0_7;

$L__BB0_4:
    shl.b32 %r4, %r1, 4;
    cvt.u64.u32 %rd32, %r4;
    setp.ge.s64 %p4, %rd32, %rd13;
    @%p4 bra $L__BB0_7;

    mov.u32 %r5, %ntid.x;
    shl.b32 %r6, %r5, 4;
    cvt.u64.u32 %rd10, %r6;

$L__BB0_6:
    add.s64 %rd27, %rd32, %rd3;
    add.s64 %rd28, %rd1, %rd27;
    add.s64 %rd29, %rd32, %rd4;
    add.s64 %rd30, %rd2, %rd29;
    ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%rd30];
    st.global.v4.u32 [%rd28], {%r7, %r8, %r9, %r10};
    add.s64 %rd32, %rd32, %rd10;
    setp.lt.s64 %p5, %rd32, %rd13;
    @%p5 bra $L__BB0_6;

$L__BB0_7:
    ret;
}
"""


class RowCopy:
    """The kernel, loaded for the calling thread's current GPU.

    Not allowed during a capture. Raises DeviceError if the driver rejects it.
    """

    def __init__(self) -> None:
        module = _call(driver.cuModuleLoadData, PTX + b"\0")
        self._kernel = _call(driver.cuModuleGetFunction, module, b"copy_rows")

    def launch(
        self, stream: int, target: int, source: int, index: int, *, rows: int, row_bytes: int
    ) -> None:
        """Enqueue the kernel on ``stream``; see `Device.copy_rows`."""
        arguments = (
            (target, source, index, row_bytes),
            (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong),
        )
        grid, block = (rows, 1, 1), (_THREADS, 1, 1)
        _call(driver.cuLaunchKernel, self._kernel, *grid, *block, 0, stream, arguments, 0)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
    """Call a function of the CUDA driver and return its value, if any."""
    error, *values = function(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(error)
        raise DeviceError(f"CUDA call {function.__name__}", f"failed with {name.decode()}")
    return values[0] if values else None
