import re
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.protocol.administration import (
    Rights,
    command,
    rights_to_look,
    rights_to_process,
    rights_to_seed,
    rights_to_send,
)
from scheduler.protocol.topology import Exchange, Names, Queue, Subscription, Topology, topology

NAMES = Names("shop")
OURS = r"^shop\.v1\."


def to_seed(*subscriptions: Subscription) -> Rights:
    tasks = ["mail", *(each.task for each in subscriptions)]
    wanted = topology("shop", tasks, subscriptions=subscriptions, called=tasks)
    return rights_to_seed(NAMES, wanted)


def allowed(pattern: str, names: Sequence[str]) -> list[str]:
    """Those names that the broker would let pass: it searches, unanchored."""
    return [name for name in names if re.search(pattern, name)]


def test_seeding_needs_rights_to_the_namespace_and_subscribed_exchanges():
    assert to_seed() == Rights(OURS, OURS, OURS)
    rights = to_seed(
        Subscription("bill", "orders", "order.paid"),
        Subscription("ship", "orders", "order.shipped"),
        Subscription("ship", "carriers.v2", "#"),
    )
    assert rights == Rights(OURS, OURS, r"^(shop\.v1\.|carriers\.v2$|orders$)")
    declared = r"^(shop\.v1\.|orders$)"
    assert to_seed(Subscription("bill", "orders", "#", "topic")) == Rights(declared, OURS, declared)


@pytest.mark.parametrize(
    "name", ["a.b", "a+b", "(a)", "[a]", "{1}", "a|b", "^a", "$a", r"a\b", "é"]
)
def test_names_of_exchanges_are_escaped_in_rights(name: str):
    read = to_seed(Subscription("bill", name, "#")).read
    assert allowed(read, [name, "shop.v1.x"]) == [name, "shop.v1.x"]
    assert allowed(read, ["axb", "ab", "a", "1", "", f"{name}.x", f"x.{name}"]) == []


@pytest.mark.parametrize("kind", ["alternate-exchange", "x-dead-letter-exchange"])
def test_rights_cover_all_names_of_a_declaration(kind: str):
    arguments: dict[str, Any] = {kind: "theirs"}
    wanted = {
        "alternate-exchange": Topology(exchanges=(Exchange("ours", "topic", arguments),)),
        "x-dead-letter-exchange": Topology(queues=(Queue("ours", arguments),)),
    }[kind]
    rights = rights_to_seed(NAMES, wanted)
    assert rights == Rights(
        r"^(shop\.v1\.|ours$)", r"^(shop\.v1\.|theirs$)", r"^(shop\.v1\.|ours$)"
    )


def test_a_processor_declares_nothing_and_a_client_publishes_where_messages_enter():
    assert rights_to_process(NAMES) == Rights("^$", OURS, OURS)
    client = rights_to_send(NAMES)
    assert (client.configure, client.read) == ("^$", "^$")
    every = topology("shop", ["mail"], called=["mail"])
    objects = [each.name for each in (*every.exchanges, *every.queues)]
    assert set(allowed(client.write, objects)) == {NAMES.calls, NAMES.later}


def test_rights_to_a_namespace_end_at_its_name():
    neighbours = ["shop2.v1.x", "myshop.v1.x", "shopxv1.x", "shop.v2.x", "shop.v1x", "a.shop.v1.x"]
    rights = [
        to_seed(),
        *(need(NAMES) for need in (rights_to_process, rights_to_send, rights_to_look)),
    ]
    for pattern in [
        each for right in rights for each in (right.configure, right.write, right.read)
    ]:
        assert allowed(pattern, neighbours) == []


def test_the_command_is_ready_for_a_shell():
    assert command(rights_to_process(NAMES), user="shop-processor", vhost="/") == (
        r"rabbitmqctl set_permissions -p / shop-processor "
        r"'^$' '^shop\.v1\.' '^shop\.v1\.'"
    )
    odd = Rights("^(it's$)", "", "^$")
    assert command(odd, user="a b", vhost="my vhost").split(" -p ")[1] == (
        "'my vhost' 'a b' '^(it'\"'\"'s$)' '' '^$'"
    )
