"""What is shown in a terminal of 80 columns, and what programs get instead."""

import re

import pytest

from tests.acceptance.conftest import FINE, LOOPS, SHOP, CommandLine
from tests.stage import an_app

COLOUR = re.compile(r"\x1b\[3\d")
STYLE = re.compile(r"\x1b\[[\d;]*m")
MOMENT = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d")


def plain(shown: str) -> str:
    return STYLE.sub("", shown)


def lines(shown: str) -> list[str]:
    return plain(shown).splitlines()


@pytest.mark.parametrize(
    "command", ["seed", "status", "history", "next", "failed list", "topology show", "doctor"]
)
def test_nothing_is_wider_than_the_terminal(looked_at: CommandLine, command: str):
    done = looked_at.in_terminal(*command.split())
    assert done.code == FINE
    wide = [line for line in lines(done.out) if len(line) > 80]
    assert [line for line in wide if "rabbitmqctl" not in line] == []  # which is to be copied


def test_a_pipe_gets_all_columns_with_exact_times_and_their_zone(looked_at: CommandLine):
    head, first, *_, last = looked_at("status").out.splitlines()
    assert head.split()[3:6] == ["DUE", "LAST", "STARTED"]
    assert MOMENT.search(first)
    assert re.search(r" 09:00:00\+0[12]:00", last)  # Europe/Berlin


def test_the_status_of_one_loop_shows_everything(looked_at: CommandLine):
    done = looked_at("status", "wait_for_input")
    assert done.code == FINE
    told = [line[:13].strip() for line in done.out.splitlines()]
    assert told == [
        *("loop", "schedule", "state", "seq", "due", "next", "next", "next"),
        *("processors", "epoch", "begun", "by"),
    ]
    assert "schedule     0 9 * * MON-FRI in Europe/Berlin\n" in done.out
    assert re.search(r"due +\S+ 09:00:00\+0[12]:00 \(in \d+ \S+.*\)", done.out), done.out
    assert looked_at("status", "wait_for_input", "--json").json["loop"] == "wait_for_input"


def test_a_watch_shows_what_changes_until_it_is_interrupted(seeded: CommandLine):
    with seeded.terminal("status", "--watch", "--interval", "1s") as terminal:
        terminal.until("every 1 s until Ctrl-C")
        assert seeded("pause", "report", "--reason", "stocktaking").code == FINE
        terminal.until("stocktaking")
        terminal.interrupt()
        done = terminal.end()
    assert done.code == FINE
    assert "Traceback" not in done.out
    assert "\x1b[33mpaused\x1b[0m" in done.out
    assert not COLOUR.search(seeded.in_terminal("status", NO_COLOR="1").out)
    assert "\x1b" not in seeded("status").out


def test_text_that_a_pipe_cannot_encode_is_escaped(offline: CommandLine):
    scheduler, narrow = offline.installed, {"PYTHONIOENCODING": "ascii"}
    shown = scheduler("topology", "show", SHOP, **narrow)
    assert (shown.code, "\\u2192 " in shown.out) == (FINE, True), shown.err
    crontab = "* * * * * echo Äpfel →\n"
    imported = scheduler("import", "crontab", "-", "--json", answer=crontab, **narrow)
    assert imported.out.isascii()
    assert "echo Äpfel →" in imported.json["code"]


def test_a_watch_has_a_shortest_interval(offline: CommandLine):
    done = offline.in_terminal("status", SHOP, "--watch", "--interval", "100ms")
    assert (done.code, "--interval must be at least 1s" in done.out) == (2, True)


def test_progress_is_shown_in_a_terminal_and_never_in_the_output(scheduler: CommandLine):
    count = len(an_app("shop", LOOPS).topology().queues) + len(LOOPS)
    all_done = re.compile(f"seeding queues and loops .* {count}/{count} ")
    for _ in "all is new", "nothing is":
        assert all_done.search(plain(scheduler.in_terminal("seed").out))
    assert "seeding" not in scheduler("seed").output
    assert "seeding" not in scheduler.in_terminal("seed", "--json").out
    assert "replayed" in scheduler.in_terminal("failed", "replay", "--all").out
