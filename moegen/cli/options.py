"""Options that several verbs share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from moegen.core.enums import Target

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="Spec file (.yaml or .toml).")]
PackageOrSpec = Annotated[
    Path, typer.Argument(metavar="PACKAGE", help="Folder of a generated package, or its spec file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
OneTarget = Annotated[Target, typer.Option("--target", help="Target to work on.")]
ManyTargets = Annotated[
    list[Target] | None,
    typer.Option("--target", help="Target; may be repeated. Default: all of the spec.", show_default=False),
]
Generated = Annotated[Path, typer.Option("--generated", help="Folder of generated packages.")]
Database = Annotated[
    Path | None, typer.Option("--db", help="Tuning database. Default: trials.db below MOEGEN_HOME.", show_default=False)
]
Tokens = Annotated[
    list[int] | None,
    typer.Option("--tokens", help="Token count; may be repeated. Default: those of the spec.", show_default=False),
]
Routings = Annotated[
    list[str] | None,
    typer.Option(
        "--routing",
        help="Routing profile (uniform, one_hot, effective_experts=0.25, zipf=1.2); may be repeated.",
        show_default=False,
    ),
]
Threads = Annotated[int, typer.Option("--threads", help="Threads of CPU kernels; 0: MOEGEN_THREADS, or all cores.")]

GENERATED = Path("generated")
