"""Compiles CuTeDSL sources, one JSON request a line on standard input, one JSON answer a line on standard output.

A process of its own: ``cute.compile`` is not thread-safe, takes half a second to import, and may crash.

Request: ``{"source", "symbol", "arch", "options", "include", "out"}``. The source must define the entry ``symbol`` and
``fake_arguments()``. Answer: ``{"ok": true}`` with ``kernel.o``, ``kernel.ptx`` and ``kernel.cubin`` in ``out``, or
``{"ok": false, "log": ...}``.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from moegen.build.toolchain import CUBIN, PTX

OBJECT_FILE = "kernel.o"


def load_source(path: Path, include: list[str]) -> ModuleType:
    """Imports a rendered source under a name made of its content: the name ends up in the object's bytes."""
    for folder in include:
        if folder not in sys.path:
            sys.path.insert(0, folder)
    name = f"moegen_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def compile_source(request: dict[str, Any]) -> None:
    """Compiles one source; whatever the compiler raises is for the caller to report."""
    cute = importlib.import_module("cutlass.cute")
    module = load_source(Path(request["source"]), request["include"])
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as dump:
        flags = ["--gpu-arch", request["arch"], "--keep-ptx", "--keep-cubin", "--enable-tvm-ffi", "--dump-dir", dump]
        compiled = cute.compile(
            getattr(module, request["symbol"]),
            *module.fake_arguments(),
            options=" ".join([*flags, *request["options"]]),
        )
        (out / PTX).write_text(compiled.__ptx__)
        (out / CUBIN).write_bytes(compiled.__cubin__)
        compiled.export_to_c(str(out / OBJECT_FILE), function_name=request["symbol"])


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answers requests until standard input ends."""
    for line in requests:
        try:
            compile_source(json.loads(line))
            answer: dict[str, Any] = {"ok": True}
        except Exception:  # any failure of foreign code is a compile error of this source, with its text
            answer = {"ok": False, "log": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Keeps the protocol's stream to itself: whatever the compiler prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
