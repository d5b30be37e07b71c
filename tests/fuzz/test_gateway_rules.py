"""A part of `make fuzz`: rules of a gateway let nothing pass that a reference keeps back."""

from tests.fuzz.policy_run import glob, opened, run_policies

SEED = 20_260_728


def test_random_rules_are_judged_as_the_reference_judges_them() -> None:
    verdict = run_policies(20_000, SEED)
    assert verdict.wrong == []
    # Otherwise the run would have tried nothing.
    for outcome in ("name passes", "name approval", "name denied", "URI passes", "URI denied"):
        assert verdict.outcomes[outcome] > 200, verdict.outcomes


def test_the_reference_finds_what_servers_open() -> None:
    assert "/etc/passwd" in opened("file:///srv/public/%252e%252e/../etc/passwd") | opened(
        "file://localhost/etc/passwd"
    )
    assert glob("a*c?", "abbcd")
    assert not glob("a*c?", "abbc")
