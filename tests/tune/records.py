"""Trial records for tests, as a session would write them."""

from dataclasses import replace

from moegen.core.canonical import canonical_json
from moegen.core.enums import Round, Target
from moegen.core.ops import Numerics
from moegen.store.database import Result
from moegen.store.trials import Environment, Problem, Routing, Session, Subject, Trial, TrialStatus
from moegen.tune.policy import Effort, Stage, measure_policy

POLICY = measure_policy(Target.CPU, Effort.QUICK)
CLASS = canonical_json(Numerics()).decode()
OTHER_CLASS = canonical_json(replace(Numerics(), pre_quant_round=Round.BF16)).decode()
ENVIRONMENT = Environment(device="cpu", target="cpu", arch="x86-64-v3", cores=2, l2_bytes=1 << 20)


def session(started: float = 1.0) -> Session:
    return Session(started=started, host="h", command="moegen tune")


def result(
    variant: str,
    median_us: float | None,
    *,
    tokens: int = 8,
    routing: str = "uniform",
    stage: Stage = Stage.FINAL,
    started: float = 1.0,
    ci_us: float = 0.0,
    status: TrialStatus | None = None,
    numerics: str = CLASS,
    subject: Subject = Subject.PIPELINE,
) -> Result:
    status = status or (TrialStatus.OK if median_us is not None else TrialStatus.CRASH)
    problem = Problem(
        package="p" * 64,
        name="small",
        target="cpu",
        subject=subject,
        tokens=tokens,
        top_k=2,
        experts=7,
        hidden=80,
        intermediate=48,
        numerics=numerics,
    )
    spread = Routing(label=routing, parameters={}, seed=0, active_experts=7)
    policy, run = POLICY.record(stage), session(started)
    trial = Trial(
        problem=problem.id,
        routing=spread.id,
        environment=ENVIRONMENT.id,
        policy=policy.id,
        session=run.id,
        variant=variant,
        status=status,
        median_us=median_us,
        ci_us=ci_us,
        n=9,
        rounds=9,
    )
    return Result(trial=trial, problem=problem, routing=spread, environment=ENVIRONMENT, policy=policy, session=run)


def confirmed(default_us: float, rival: str, rival_us: float, **where: object) -> list[Result]:
    """Both sides of a duel between ``default`` and ``rival``."""
    return [
        result("default", default_us, stage=Stage.CONFIRM, **where),  # pyright: ignore[reportArgumentType]
        result(rival, rival_us, stage=Stage.CONFIRM, **where),  # pyright: ignore[reportArgumentType]
    ]
