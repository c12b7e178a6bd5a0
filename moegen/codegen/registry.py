"""Finds each target's catalog; a catalog is imported when its target is first asked for."""

from functools import cache
from importlib import import_module

from moegen.codegen.catalog import Catalog
from moegen.codegen.schedule import ScheduleFamily
from moegen.codegen.variant import Variant
from moegen.codegen.variant import parse_variant as _parse
from moegen.core.enums import OpKind, Target

#: Modules that export ``CATALOG`` (or, where one serves several targets, ``CATALOGS`` by target).
_MODULES = {
    Target.CPU: "moegen.codegen.catalogs.cpu",
    Target.SM_90A: "moegen.codegen.catalogs.sm90_block",
    Target.SM_100A: "moegen.codegen.catalogs.sm100",
    Target.SM_103A: "moegen.codegen.catalogs.sm100",
}


@cache
def catalog(target: Target) -> Catalog:
    """The catalog of ``target``."""
    module = import_module(_MODULES[target])
    return module.CATALOGS[target] if hasattr(module, "CATALOGS") else module.CATALOG


def families(target: Target, kind: OpKind) -> tuple[ScheduleFamily, ...]:
    """Schedule families of a target that can serve an op kind."""
    return catalog(target).families(kind)


def parse_variant(name: str) -> Variant:
    """Reads a canonical variant name of any target; raises IllegalVariant."""
    return _parse(name, families)
