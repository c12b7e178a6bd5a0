"""Hypothesis strategies and plain examples of database records."""

from dataclasses import replace

from hypothesis import strategies as st

from moegen.store.trials import (
    Environment,
    Pin,
    Policy,
    Problem,
    Record,
    Retraction,
    Routing,
    Session,
    Subject,
    Trial,
    TrialStatus,
)

PROBLEM = Problem(
    package="p" * 64,
    name="tiny",
    target="cpu",
    subject=Subject.PIPELINE,
    tokens=8,
    top_k=2,
    experts=6,
    hidden=144,
    intermediate=80,
    numerics="{}",
)
ROUTING = Routing(label="uniform", parameters={"share": 0.25, "names": ["a"]}, seed=3, active_experts=5)
ENVIRONMENT = Environment(device="cpu", target="cpu", arch="x86-64-v3", cores=2, l2_bytes=1 << 20, power_limit_w=65.5)
POLICY = Policy(timer="cpu_wall", cache="cold", parameters={"rounds": 8, "ci_bound": 0.01})
SESSION = Session(started=1.5, host="h" * 64, command="moegen tune", dirty=True)
CONTEXT = (PROBLEM, ROUTING, ENVIRONMENT, POLICY, SESSION)
TRIAL = Trial(
    problem=PROBLEM.id,
    routing=ROUTING.id,
    environment=ENVIRONMENT.id,
    policy=POLICY.id,
    session=SESSION.id,
    variant="pipe-a",
    artifacts=("k1", "k2"),
    status=TrialStatus.OK,
    median_us=12.25,
    p20_us=12.0,
    p80_us=13.0,
    ci_us=0.1,
    n=40,
    rounds=8,
)
EXAMPLES: tuple[Record, ...] = (
    *CONTEXT,
    TRIAL,
    Retraction(trial=TRIAL.id, reason="machine was busy"),
    Pin(package="p" * 64, target="cpu", tokens=8, routing="uniform", pipeline="pipe-a", reason="steady"),
)

_times = st.floats(min_value=0.001, max_value=1e9)
trials = st.builds(
    lambda variant, time, note, n: replace(TRIAL, variant=variant, median_us=time, note=note, n=n),
    st.sampled_from(("pipe-a", "pipe-b", "pipe-c")),
    _times,
    st.text(max_size=6),
    st.integers(0, 3),
)
failures = st.builds(
    lambda status: replace(
        TRIAL, status=status, median_us=None, p20_us=None, p80_us=None, ci_us=None, err_rel=0.5, note="log"
    ),
    st.sampled_from([status for status in TrialStatus if status not in (TrialStatus.OK, TrialStatus.NOISY)]),
)
retractions = st.builds(Retraction, trial=st.just(TRIAL.id), reason=st.text(max_size=6))
pins = st.builds(
    Pin,
    package=st.sampled_from(("p" * 64, "q" * 64)),
    target=st.just("cpu"),
    tokens=st.integers(0, 9),
    pipeline=st.text(max_size=4),
    reason=st.text(max_size=4),
)
record_sets = st.lists(st.one_of(trials, failures, retractions, pins), max_size=6).map(
    lambda records: [*CONTEXT, *records]
)
