"""Planning and rendering: from a spec to pipelines, variants and readable source.

``plan`` decides, ``generate`` writes a package, ``check_generated`` is the golden gate, ``explain_plan`` says why.
"""

from moegen.codegen.explain import explain_plan
from moegen.codegen.packaging import check_generated, generate
from moegen.codegen.planning import TargetPlan, plan
from moegen.codegen.registry import parse_variant
from moegen.codegen.variant import Variant

__all__ = ["TargetPlan", "Variant", "check_generated", "explain_plan", "generate", "parse_variant", "plan"]
