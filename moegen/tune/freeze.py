"""Trials to frozen tables: one for each numerics class that a package offers on a target."""

from collections import defaultdict
from collections.abc import Iterable

from moegen.core.canonical import Json, canonical_json, digest, plain
from moegen.core.enums import Target
from moegen.core.errors import TuneError
from moegen.core.ops import Numerics
from moegen.core.package import Package, TargetPackage
from moegen.store.database import Result
from moegen.store.tables import Point, Table
from moegen.store.trials import Pin, Policy, Subject
from moegen.tune.policy import SelectPolicy, Stage
from moegen.tune.select import Choice, Reason, choose


def class_defaults(offer: TargetPackage) -> dict[Numerics, str]:
    """The pipeline that others of its numerics class must beat: the target's default, else the class's first that
    serves any batch."""
    defaults: dict[Numerics, str] = {}
    for pipeline in (pipeline for pipeline in offer.pipelines if pipeline.most_tokens is None):
        if pipeline.numerics not in defaults or pipeline.name == offer.default:
            defaults[pipeline.numerics] = pipeline.name
    return defaults


def numerics_text(numerics: Numerics) -> str:
    """The form in which ``Problem`` records carry a numerics class."""
    return canonical_json(numerics).decode()


def table_view(results: Iterable[Result]) -> list[Result]:
    """The trials that may stand in one table: of the newest session's machine, and of one measurement policy.

    The policy is the one that covers most points, the newest of several: a quick look at one point never displaces a
    full table.
    """
    results = list(results)
    if not results:
        return []
    newest = max(results, key=_age)
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if _machine(result) == _machine(newest):
            groups[canonical_json(policy_content(result.policy)).decode()].append(result)
    return max(groups.values(), key=lambda group: (len(_points(group)), max(map(_age, group))))


def policy_content(policy: Policy) -> dict[str, Json]:
    """A policy without the stage: what all trials of one session share."""
    parameters = {name: value for name, value in policy.parameters.items() if name != "stage"}
    return {"timer": policy.timer, "cache": policy.cache, **parameters}


def choices_by_class(
    results: Iterable[Result], package: Package, target: Target, policy: SelectPolicy, pins: Iterable[Pin] = ()
) -> dict[Numerics, list[Choice]]:
    """Winners of each numerics class of a target, from trials of one view (:func:`table_view`)."""
    view, pinned = list(results), list(pins)
    return {
        numerics: choose(view, default, numerics_text(numerics), policy, pinned)
        for numerics, default in class_defaults(package.targets[target]).items()
    }


def freeze_tables(
    results: Iterable[Result], package: Package, target: Target, policy: SelectPolicy, pins: Iterable[Pin] = ()
) -> list[Table]:
    """Tables for a package on the machine of the newest session; classes without a valid point have none.

    Raises:
        TuneError: no trial of this package and target, or none that is valid.
    """
    offer = package.offer_digest(target)
    view = table_view(
        result for result in results if result.problem.package == offer and result.problem.target == target.value
    )
    if not view:
        raise TuneError(
            f"no trials of {package.name} on {target.value}", "database", f"moegen tune --target {target.value}"
        )
    newest = max(view, key=_age)
    tables = [
        Table(
            package=offer,
            layer=package.layer_digest(target),
            name=package.name,
            environment=newest.environment,
            policy=policy_content(newest.policy),
            selection=_content(policy),
            numerics=numerics,
            points=tuple(_point(choice) for choice in choices),
            default=class_defaults(package.targets[target])[numerics],
            pipelines=_variants(choices, package, target),
            trials=digest(sorted({trial for choice in choices for trial in choice.trials}), "moegen.trials"),
        )
        for numerics, choices in choices_by_class(view, package, target, policy, pins).items()
        if choices
    ]
    if not tables:
        raise TuneError(f"no valid candidate of {package.name} on {target.value}", "database", "moegen report SPEC")
    return tables


def _variants(choices: Iterable[Choice], package: Package, target: Target) -> dict[str, tuple[str, ...]]:
    """Variants of every pipeline that was timed."""
    names = sorted({candidate.pipeline for choice in choices for candidate in choice.candidates})
    steps = {pipeline.name: pipeline.steps for pipeline in package.targets[target].pipelines}
    return {name: tuple(step.variant for step in steps[name]) for name in names}


def _point(choice: Choice) -> Point:
    return Point(
        tokens=choice.tokens,
        routing=choice.routing,
        winner=choice.winner,
        candidates=choice.candidates,
        pinned=choice.reason is Reason.PINNED,
    )


def _content(policy: SelectPolicy) -> dict[str, Json]:
    content = plain(policy)
    assert isinstance(content, dict)
    return content


def _machine(result: Result) -> tuple[str, str]:
    return result.environment.device, result.environment.arch


def _age(result: Result) -> tuple[float, str]:
    return result.session.started, result.session.id


def _points(results: Iterable[Result]) -> set[tuple[int, str]]:
    """Points at which some pipeline ran all rounds."""
    return {
        (result.problem.tokens, result.routing.label)
        for result in results
        if result.problem.subject is Subject.PIPELINE and result.policy.parameters["stage"] == Stage.FINAL.value
    }
