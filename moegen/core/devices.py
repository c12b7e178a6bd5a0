"""Device facts: the numbers that legality, the time model and table matching read, never the driver."""

from dataclasses import dataclass

from moegen.core.enums import Target


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """One kind of machine.

    Attributes:
        name: as tables and reports print it.
        target: what its kernels are generated for.
        arch: exact architecture an artifact must have been built for (``x86-64-v3``, ``sm_90a``).
        cores: CPU threads or streaming multiprocessors.
        smem_bytes: shared memory one CTA may opt in to; 0 on a CPU.
        smem_sm_bytes: shared memory of one multiprocessor; 0 on a CPU.
        registers_sm: 32-bit registers of one multiprocessor; 0 on a CPU.
        tmem_columns: tensor-memory columns of one multiprocessor; 0 where there is none.
        l2_bytes: last-level cache in bytes.
        read_bytes_s: measured or published streaming read rate, bytes per second.
        flops_s: dense rate of the multiply the target's gemm uses, flop per second.
        launch_us: cost of one dependent launch, microseconds.
        source: where the rates come from.
    """

    name: str
    target: Target
    arch: str
    cores: int
    smem_bytes: int = 0
    smem_sm_bytes: int = 0
    registers_sm: int = 0
    tmem_columns: int = 0
    l2_bytes: int
    read_bytes_s: float
    flops_s: float
    launch_us: float
    source: str


CPU_GENERIC = DeviceFacts(
    name="cpu",
    target=Target.CPU,
    arch="x86-64-v3",
    cores=2,
    l2_bytes=32 << 20,
    read_bytes_s=15e9,
    flops_s=40e9,
    launch_us=2.0,
    source="order of magnitude of a two-core x86-64-v3 machine; ranks candidates only",
)
H200 = DeviceFacts(
    name="NVIDIA H200",
    target=Target.SM_90A,
    arch="sm_90a",
    cores=132,
    smem_bytes=232_448,
    smem_sm_bytes=233_472,
    registers_sm=65_536,
    l2_bytes=60 << 20,
    read_bytes_s=4.58e12,
    flops_s=760e12,
    launch_us=2.5,
    source="measured on one H200 (read stream of 4 GiB, bf16 8192^3); launch: dependent launch inside a graph",
)
B200 = DeviceFacts(
    name="NVIDIA B200",
    target=Target.SM_100A,
    arch="sm_100a",
    cores=148,
    smem_bytes=232_448,
    smem_sm_bytes=233_472,
    registers_sm=65_536,
    tmem_columns=512,
    l2_bytes=126 << 20,
    read_bytes_s=7.7e12,
    flops_s=9e15,
    launch_us=2.5,
    source="datasheet; not measured",
)
B300 = DeviceFacts(
    name="NVIDIA B300",
    target=Target.SM_103A,
    arch="sm_103a",
    cores=148,
    smem_bytes=232_448,
    smem_sm_bytes=233_472,
    registers_sm=65_536,
    tmem_columns=512,
    l2_bytes=126 << 20,
    read_bytes_s=7.7e12,
    flops_s=13e15,
    launch_us=2.5,
    source="datasheet; not measured",
)

#: The device a target's schedules are planned for when none is at hand.
PLANNING_DEVICE: dict[Target, DeviceFacts] = {
    Target.CPU: CPU_GENERIC,
    Target.SM_90A: H200,
    Target.SM_100A: B200,
    Target.SM_103A: B300,
}
