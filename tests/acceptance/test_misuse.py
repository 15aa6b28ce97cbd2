"""What is asked for wrongly is answered in one paragraph, and no broker is asked."""

import shlex

import pytest

from scheduler.cli.commands import ELSEWHERE
from tests.acceptance.conftest import APPS, MISUSE, PASSWORD, SHOP, UNREACHABLE, CommandLine

DESK = f"{APPS}/desk.py"
SCHEDULE = "A schedule is --every or --cron, one of them"
NO_OPTION = "is no option: the arguments are one JSON object, such as --args '{\"n\": 1}'."
NO_TEXT = "'\\udcff' is neither UTF-8 text nor an existing file."
AT_SHOP = [
    # Apps
    ("dev no_such_file.py:app", "There is no file 'no_such_file.py'"),
    (f"dev {APPS}/no_tasks.py:app", "has no tasks"),
    ("status nosuch.py", "There is no file 'nosuch.py' in '/"),
    # Commands
    ("sede", "No such command 'sede'."),
    ("status --jsn", "No such option: --jsn"),
    ("next -n 0", "'-n': Input should be greater than or equal to 1"),
    ("run --concurrency 0", "'--concurrency': Input should be greater than or equal to 1"),
    (f"next {APPS}/shop.py poll", "`scheduler next` takes APP, and got poll as well."),
    ("import apscheduler x.py", "no command 'apscheduler'; there are: celery, cronjob, crontab."),
    *((name, f"Did you mean `scheduler {here}`?") for name, here in ELSEWHERE.items()),
    # Loops and runs
    ("run --tasks raport", "There is no task 'raport'; did you mean 'report'?"),
    ("cancel", "The command needs the argument RUN"),
    ("pause report --all", "LOOP and --all cannot be combined, got: report."),
    ("resume report --now --after 2026-06-01", "--now and --after"),
    ("resume report --after noon", "--after: expected a moment such as 2026-06-01T"),
    ("pause \udcff", NO_TEXT),
    ("dev --for soon", "--for: expected a number and a unit"),
    ("dev --log-format xml", "--log-format is text, dated, json, got 'xml'"),
    # Watching
    ("status --watch", "--watch shows all loops in a terminal"),
    ("status report --watch", "omit LOOP and --json"),
    ("doctor --live", "SCHEDULER_HEALTH_PORT"),
    # Schedules
    ("schedule set report", f"{SCHEDULE}: --every 5m, or --cron "),
    ("schedule set report --every 5m --cron @daily", SCHEDULE),
    ("schedule set report --every 5m --tz UTC", "Every takes no --tz; it takes --every, --mode"),
    ("schedule set report --every 5x", "--every: expected a number and a unit"),
    ("schedule set report --cron '0 9 * * MOX'", "the day of week field takes 0-7 or SUN-SAT"),
]
AT_DESK = [
    # Calls
    ("send", "The command needs the argument TASK"),
    ("send sms", "phone: "),
    ("send smss --args {}", "did you mean 'sms'?"),
    ("send sms --args {", "--args: expected a JSON object such as"),
    (f"send sms --args {'[' * 100_000}", "...: maximum recursion depth exceeded"),
    ("send sms --in 1s --at 2090-01-01", "give --in or --at, not both"),
    ('send sms --args \'{"phone": "x"}\' --in soon', "--in: "),
    *((f"send {words}", NO_OPTION) for words in ("sms n=5", f"{DESK} sms 5", "sms --phone 5")),
    # Named one-offs
    ("scheduled move sms.o", "give --at or --after"),
    ("scheduled move sms.o --at tomorrow", "expected a moment such as"),
    ("scheduled move sms.o --after soon", "--after: "),
    # Parked messages
    ("failed list --reason exausted", "There is no reason to park 'exausted'; did you mean"),
    ("failed replay", "the IDs of messages, --task, --reason or --all"),
    ("failed replay m1 --task sms", "--all, --task and --reason cannot be combined"),
    ("failed replay --all --rate fast", 'such as "50/s" or "100/m", got \'fast\''),
]
SETTINGS = [
    ("dev", {"SCHEDULER_APP": ""}, "No app was named."),
    ("status nosuch", {"SCHEDULER_APP": ""}, "There is no module 'nosuch'. Modules are"),
    ("seed", {"SCHEDULER_BROKER_URL": "memory://"}, "use `scheduler dev`"),
    ("run", {"SCHEDULER_BROKER_URL": "memory://"}, "use `scheduler dev`"),
    (
        f'send {DESK} sms --args \'{{"phone": "1"}}\'',
        {"SCHEDULER_BROKER_URL": "memory://"},
        "memory:// lives within one process",
    ),
    ("seed", {"SCHEDULER_BROKER_URL": f"amqp://shop:{PASSWORD}@x:99999/"}, "cannot be read"),
    ("topology show", {"SCHEDULER_HEARTBEAT": "soon"}, "SCHEDULER_HEARTBEAT: "),
    (
        "dev --for 1s",
        {"SCHEDULER_CONCURENCY": "5"},
        "There is no setting SCHEDULER_CONCURENCY: did you mean SCHEDULER_CONCURRENCY?",
    ),
    ("run", {"SCHEDULER_METRICS_PORT": "tcp://10.0.0.7:9100"}, "enableServiceLinks: false"),
]


@pytest.mark.parametrize(
    ("command", "environment", "told"),
    [
        *((command, {}, told) for command, told in AT_SHOP),
        *((command, {"SCHEDULER_APP": DESK}, told) for command, told in AT_DESK),
        *SETTINGS,
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_misuse_is_told(
    offline: CommandLine, command: str, environment: dict[str, str], told: str
) -> None:
    known = {"SCHEDULER_APP": SHOP, "SCHEDULER_BROKER_URL": UNREACHABLE}
    done = offline(*shlex.split(command), **(known | environment))
    assert (done.code, done.out) == (MISUSE, "")
    *usage, line = done.err.splitlines()
    assert told in line
    assert line.startswith("Error: ") if usage else line.startswith("scheduler: ")
    assert "Traceback" not in done.err
    assert PASSWORD not in done.err
