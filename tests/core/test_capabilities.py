"""What a client may be asked, from what it declares; what it is told of what is missing."""

from typing import Any, get_args

import pytest

from antiphon.errors import CapabilityMissing
from antiphon.protocol.capabilities import TASKS, Capability, allows, missing, require, required

DECLARED: dict[Capability, dict[str, Any]] = {
    "form": {"elicitation": {"form": {}}},
    "url": {"elicitation": {"url": {}}},
    "sampling": {"sampling": {}},
    "sampling.tools": {"sampling": {"tools": {}}},
    "sampling.context": {"sampling": {"context": {}}},
    "roots": {"roots": {}},
    "tasks": {"extensions": {TASKS: {}}},
}
WITH_IT: dict[Capability, set[Capability]] = {
    "sampling.tools": {"sampling"},
    "sampling.context": {"sampling"},
}
"""What is declared together with something else."""


@pytest.mark.parametrize("declared", get_args(Capability))
@pytest.mark.parametrize("need", get_args(Capability))
def test_a_client_may_be_asked_what_it_declares_and_nothing_else(
    declared: Capability, need: Capability
) -> None:
    expected = need == declared or need in WITH_IT.get(declared, set())
    assert allows(DECLARED[declared], need) is expected


@pytest.mark.parametrize("need", get_args(Capability))
@pytest.mark.parametrize("nothing", [{}, {"elicitation": None, "sampling": True, "roots": []}])
def test_what_is_no_object_declares_nothing(need: Capability, nothing: dict[str, Any]) -> None:
    assert allows(nothing, need) is False


def test_an_empty_elicitation_means_forms_and_a_list_means_nothing() -> None:
    assert allows({"elicitation": {}}, "form")
    assert not allows({"elicitation": {}}, "url")
    assert not allows({"elicitation": []}, "form")
    assert not allows({"sampling": {"tools": True}}, "sampling.tools")


def test_what_is_missing_is_named_once_in_order_and_as_the_client_would_declare_it() -> None:
    needs: list[Capability] = ["url", "sampling.tools", "url", "form", "roots"]
    assert missing({"roots": {}}, needs) == ["url", "sampling.tools", "form"]
    assert required(["url", "form", "sampling"]) == {
        "elicitation": {"url": {}, "form": {}},
        "sampling": {},
    }
    with pytest.raises(CapabilityMissing, match="asking for a visit") as refused:
        require({"elicitation": {"form": {}}}, ("form", "url"), "asking for a visit")
    assert refused.value.data == {"requiredCapabilities": {"elicitation": {"url": {}}}}
    require({"elicitation": {"form": {}}}, ("form",), "asking")


def test_asking_twice_for_what_is_required_gives_separate_objects() -> None:
    first = required(["form"])
    first["elicitation"]["other"] = {}
    assert required(["form"]) == {"elicitation": {"form": {}}}
