"""What holds for every test: how Hypothesis behaves on a busy machine."""

import os

from hypothesis import HealthCheck, settings

# Generated examples are counted, not timed: a slow moment of the machine is no failure. In CI the
# same examples are drawn every time, so that a red run can be run again.
settings.register_profile(
    "antiphon",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("antiphon")
