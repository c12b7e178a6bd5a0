"""Functional interpreter of PTX for sm_90a and sm_100a, in Python with NumPy.

>>> import moegen.ptx
>>> module = moegen.ptx.load(text)                                    # doctest: +SKIP
>>> module.launch("add", grid=4, block=128, args=[x, y, out, n])      # doctest: +SKIP
"""

from moegen.ptx.errors import (
    CaptureError,
    ExecutionError,
    OperandError,
    ParameterError,
    PtxError,
    PtxSyntaxError,
    RecordError,
    UnknownInstruction,
    UnsupportedTarget,
)
from moegen.ptx.launch import Launch, Module, Result, load, load_many, run_launches
from moegen.ptx.options import ADVERSARIES, Numerics, Options, Policy
from moegen.ptx.report import Check, Report, Severity

__all__ = [
    "ADVERSARIES",
    "CaptureError",
    "Check",
    "ExecutionError",
    "Launch",
    "Module",
    "Numerics",
    "OperandError",
    "Options",
    "ParameterError",
    "Policy",
    "PtxError",
    "PtxSyntaxError",
    "RecordError",
    "Report",
    "Result",
    "Severity",
    "UnknownInstruction",
    "UnsupportedTarget",
    "load",
    "load_many",
    "run_launches",
]
