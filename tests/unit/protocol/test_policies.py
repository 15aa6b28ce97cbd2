"""Which policies change our queues and exchanges, and what shields these."""

import shlex
from typing import Any

import pytest

from scheduler.protocol.administration import BrokerPolicy, advice, harms, shield
from scheduler.protocol.topology import Queue, topology

SHOP = topology("shop", ["report"], called=["report"])
DECLARED = *SHOP.queues, *SHOP.exchanges
TIMER, PARKED, CALLS = "shop.v1.hatchery.2m", "shop.v1.failed.report", "shop.v1.calls"
LOOKED_AT = {TIMER, PARKED, CALLS, "shop.v1.journal", "shop.v1.delayed"}


def blanket(pattern: str = ".*", **settings: Any) -> BrokerPolicy:
    return BrokerPolicy(
        "all", pattern, {name.replace("_", "-"): of for name, of in settings.items()}
    )


def changed(*policies: BrokerPolicy) -> set[str]:
    return {name for harm in harms(DECLARED, policies) for name in harm.changed}


@pytest.mark.parametrize(
    ("settings", "is_changed"),
    [
        ({"message_ttl": 3_600_000}, {PARKED}),
        ({"expires": 1000}, {TIMER, PARKED}),
        ({"dead_letter_exchange": "dlx"}, {PARKED}),
        ({"dead_letter_routing_key": "dead"}, {TIMER, PARKED}),
        ({"max_length": 1, "overflow": "drop-head"}, {TIMER, PARKED}),
        ({"max_length_bytes": 1}, {TIMER, PARKED, "shop.v1.journal"}),
        ({"max_length_bytes": 10**12}, {TIMER, PARKED}),
        ({"delivery_limit": 5}, {TIMER, PARKED}),
        ({"delivery_limit": -1}, set[str]()),
        ({"overflow": "drop-head"}, set[str]()),
        ({"alternate_exchange": "lost", "expires": 1}, {CALLS, TIMER, PARKED}),
        ({"queue_leader_locator": "balanced"}, set[str]()),
        ({"max_length_bytes": 1, "message_ttl": 1}, {TIMER, PARKED}),  # not applied to streams
    ],
)
def test_a_policy_is_harmful_if_it_changes_our_declarations(
    settings: dict[str, Any], is_changed: set[str]
) -> None:
    assert changed(blanket(**settings)) & LOOKED_AT == is_changed
    assert not changed(blanket("^other", **settings))


def test_the_highest_priority_applies_below_operator_policies() -> None:
    ttl, alternate = blanket(message_ttl=1), blanket(alternate_exchange="lost")
    for each in ttl, alternate:
        assert changed(each)
        assert not changed(each, shield("shop"))
    operators = BrokerPolicy("limits", ".", {"message-ttl": 1}, is_operator=True)
    (harm,) = harms(DECLARED, [ttl, shield("shop"), operators])
    assert (harm.about, harm.settings) == ("operator policy 'limits'", {"message-ttl": 1})
    assert "change its pattern" in advice(harm, "shop", "/")


def test_the_advice_is_a_shielding_policy_above_the_harmful_one() -> None:
    (harm,) = harms(DECLARED, [BrokerPolicy("all", ".", {"expires": 1}, "queues", 5000)])
    assert harm.detail.startswith("changes shop.v1.")
    words = shlex.split(advice(harm, "shop", "my vhost"))
    assert words[:6] == [
        "rabbitmqctl",
        "set_policy",
        "-p",
        "my vhost",
        "shop-shield",
        "^shop\\.v1\\.",
    ]
    assert words[-4:] == ["--apply-to", "all", "--priority", "5001"]


def test_an_unsupported_expression_counts_as_a_match() -> None:
    assert harms([Queue("q", {"x-queue-type": "quorum"})], [blanket("(?<a)", expires=1)])
