"""The only reasons for which a test may skip. Any other skip, and every xfail, fails the run."""

ALLOWED_SKIPS = {
    "gpu": "needs an H200 (sm_90)",
    "two_gpus": "needs two H200 (sm_90) in one machine",
    "foreign_checkout": "needs a checkout of another project, named by an environment variable",
}
