"""SQL of the working database, one script per schema version.

A script is never changed once released: a database of any earlier version is brought forward by the scripts after it.
"""

MIGRATIONS: tuple[str, ...] = (
    # 1: one strict table per record kind; lists and mappings are canonical JSON text.
    """
    CREATE TABLE problem (
        id TEXT PRIMARY KEY, package TEXT NOT NULL, name TEXT NOT NULL, target TEXT NOT NULL, subject TEXT NOT NULL,
        op TEXT NOT NULL, tokens INTEGER NOT NULL, top_k INTEGER NOT NULL, experts INTEGER NOT NULL,
        hidden INTEGER NOT NULL, intermediate INTEGER NOT NULL, numerics TEXT NOT NULL
    ) STRICT;
    CREATE TABLE routing (
        id TEXT PRIMARY KEY, label TEXT NOT NULL, parameters TEXT NOT NULL, seed INTEGER NOT NULL,
        active_experts INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE environment (
        id TEXT PRIMARY KEY, device TEXT NOT NULL, target TEXT NOT NULL, arch TEXT NOT NULL, cores INTEGER NOT NULL,
        l2_bytes INTEGER NOT NULL, power_limit_w REAL, driver TEXT NOT NULL, cuda TEXT NOT NULL, os TEXT NOT NULL,
        tvm_ffi TEXT NOT NULL, torch TEXT NOT NULL, moegen TEXT NOT NULL
    ) STRICT;
    CREATE TABLE policy (
        id TEXT PRIMARY KEY, timer TEXT NOT NULL, cache TEXT NOT NULL, parameters TEXT NOT NULL
    ) STRICT;
    CREATE TABLE session (
        id TEXT PRIMARY KEY, started REAL NOT NULL, host TEXT NOT NULL, command TEXT NOT NULL, effort TEXT NOT NULL,
        budget_s REAL, seed INTEGER NOT NULL, revision TEXT NOT NULL, dirty INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE trial (
        id TEXT PRIMARY KEY,
        problem TEXT NOT NULL REFERENCES problem, routing TEXT NOT NULL REFERENCES routing,
        environment TEXT NOT NULL REFERENCES environment, policy TEXT NOT NULL REFERENCES policy,
        session TEXT NOT NULL REFERENCES session,
        variant TEXT NOT NULL, artifacts TEXT NOT NULL, status TEXT NOT NULL,
        median_us REAL, p20_us REAL, p80_us REAL, ci_us REAL, n INTEGER NOT NULL, rounds INTEGER NOT NULL,
        clock_mhz REAL, clock_ratio REAL, err_max REAL, err_rel REAL, note TEXT NOT NULL
    ) STRICT;
    CREATE TABLE retraction (id TEXT PRIMARY KEY, trial TEXT NOT NULL, reason TEXT NOT NULL) STRICT;
    CREATE TABLE pin (
        id TEXT PRIMARY KEY, package TEXT NOT NULL, target TEXT NOT NULL, tokens INTEGER NOT NULL,
        routing TEXT NOT NULL, pipeline TEXT NOT NULL, reason TEXT NOT NULL, author TEXT NOT NULL
    ) STRICT;
    """,
    # 2: the two look-ups that a tuning run repeats, and the view that people query.
    """
    CREATE INDEX trial_by_problem ON trial (problem, variant);
    CREATE INDEX problem_by_package ON problem (package, target);
    CREATE VIEW result AS
        SELECT problem.name, problem.target, problem.subject, problem.op, problem.tokens, routing.label AS routing,
               environment.device, policy.timer, trial.variant, trial.status, trial.median_us, trial.ci_us, trial.id
        FROM trial
        JOIN problem ON problem.id = trial.problem JOIN routing ON routing.id = trial.routing
        JOIN environment ON environment.id = trial.environment JOIN policy ON policy.id = trial.policy
        WHERE trial.id NOT IN (SELECT trial FROM retraction);
    """,
)
VERSION = len(MIGRATIONS)
