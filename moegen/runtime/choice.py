"""What a caller may ask of a package's pipelines, and which that leaves: legal, built, of one numerics class."""

from collections.abc import Sequence
from dataclasses import dataclass

from moegen.core.canonical import plain
from moegen.core.enums import CombineMode, Epilogue
from moegen.core.errors import MoegenError, NotBuilt
from moegen.core.ops import Numerics, numerics_from_json
from moegen.core.package import Package, Pipeline, TargetPackage
from moegen.runtime.decision import UNIFORM
from moegen.runtime.kernels import KernelBook


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A caller's wishes; None leaves the choice to the package.

    Attributes:
        epilogue: only pipelines of this mode.
        combine: ``ordered`` unless the package has no such pipeline; ``atomic`` must be asked for.
        numerics: the numerics class; the package's declared one by default.
        pipeline: exactly this pipeline, whatever the rest says.
        routing: routing class whose trials decide (``uniform``, ``one_hot``, ``effective_experts=0.25``, …).
    """

    epilogue: Epilogue | None = None
    combine: CombineMode | None = None
    numerics: Numerics | None = None
    pipeline: str | None = None
    routing: str = UNIFORM


def candidates(book: KernelBook, choice: Choice) -> tuple[Pipeline, ...]:
    """Built pipelines that a decision may pick from; never empty, and all of one numerics class.

    Raises:
        MoegenError: the package offers nothing of that kind; the message says why where the manifest does.
        NotBuilt: it offers some, none of which is built.
    """
    offer = book.package.targets[book.target]
    if choice.pipeline is not None:
        offered = tuple(pipeline for pipeline in offer.pipelines if pipeline.name == choice.pipeline)
    else:
        offered = matching(book.package, offer, choice)
    if not offered:
        raise MoegenError(
            _refusal(offer, choice),
            f"{book.package.name}, {book.target.value}",
            f"see moegen plan {book.directory} --why",
        )
    built = tuple(pipeline for pipeline in offered if book.is_built(pipeline))
    if not built:
        raise NotBuilt(
            f"none of {len(offered)} pipelines ({offered[0].name}, …) is built for {book.runner.facts.arch}",
            f"{book.package.name}, looked in {', '.join(map(str, book.store.roots))}",
            book.build_command,
        )
    return built


def matching(package: Package, offer: TargetPackage, choice: Choice) -> tuple[Pipeline, ...]:
    """Pipelines of one numerics class that fit a choice, built or not.

    Raises:
        MoegenError: several classes are left and none of them is the declared or the default one.
    """
    if not offer.pipelines:
        return ()
    default = _default(offer)
    combine = choice.combine
    if combine is None:
        modes = {pipeline.combine for pipeline in offer.pipelines}
        combine = CombineMode.ORDERED if CombineMode.ORDERED in modes else default.combine
    wanted = [
        pipeline
        for pipeline in offer.pipelines
        if pipeline.combine is combine and choice.epilogue in (None, pipeline.epilogue)
    ]
    numerics = choice.numerics or _class(package, default, wanted)
    return tuple(pipeline for pipeline in wanted if pipeline.numerics == numerics)


def _class(package: Package, default: Pipeline, wanted: Sequence[Pipeline]) -> Numerics | None:
    """The declared numerics class where a pipeline has it, else the default pipeline's, else the only one there is.

    Raises:
        MoegenError: several classes are left and none of them is the declared or the default one.
    """
    classes = list(dict.fromkeys(pipeline.numerics for pipeline in wanted))
    for numerics in (numerics_from_json(package.layer["numerics"]), default.numerics):
        if numerics in classes:
            return numerics
    if len(classes) > 1:
        texts = "; ".join(str(plain(numerics)) for numerics in classes)
        raise MoegenError(f"{len(classes)} numerics classes fit: {texts}", package.name, "pass numerics=")
    return classes[0] if classes else None


def _default(offer: TargetPackage) -> Pipeline:
    named = [pipeline for pipeline in offer.pipelines if pipeline.name == offer.default]
    return named[0] if named else offer.pipelines[0]


def _refusal(offer: TargetPackage, choice: Choice) -> str:
    asked = {name: value for name, value in plain_choice(choice).items() if value is not None}
    key = choice.pipeline or (choice.epilogue.value if choice.epilogue else "")
    reasons = [f"{name}: {reason}" for name, reason in offer.rejected if not key or name == key]
    return f"no pipeline fits {asked}" + (f" ({'; '.join(reasons)})" if reasons else "")


def plain_choice(choice: Choice) -> dict[str, object]:
    """A choice as plain JSON values, for messages and reports."""
    value = plain(choice)
    assert isinstance(value, dict)
    return dict(value)
