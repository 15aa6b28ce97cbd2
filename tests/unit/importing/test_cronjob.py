"""CronJobs of Kubernetes."""

import json
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import yaml

from scheduler import Cron, Every, Retry
from scheduler.errors import UsageError
from scheduler.importing.crontab import read_cronjobs
from scheduler.importing.writing import BY_HAND, Command, Found, ImportedJob, Unknown
from tests.imported import KINDS, job_of, notes_of


def manifest(schedule: str = "@daily", **spec: Any) -> dict[str, Any]:
    container = {"name": "it", "image": "shop:1", "command": ["work"]}
    job = {"template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "work"},
        "spec": {"schedule": schedule, "timeZone": "UTC", "jobTemplate": {"spec": job}} | spec,
    }


def read(document: Any) -> Found:
    return read_cronjobs(yaml.safe_dump(document, sort_keys=False), "jobs.yaml")


def of_container(**values: Any) -> tuple[ImportedJob, list[str]]:
    document = manifest()
    document["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0] |= values
    found = read(document)
    return found.jobs[0], notes_of(found)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("@hourly", Cron("0 * * * *")),
        ("3/5 * * * ?", Cron("3/5 * * * ?")),
        ("0 9 1 * */2", Cron("0 9 1 * 0,2,4,6")),
        ("0 9 */1 * mon", Cron("0 9 */1 * mon")),
        ("@every 1h30m", Every("1h30m", mode="fixed_rate")),
        ("CRON_TZ=Asia/Tokyo 0 9 * * *", Cron("0 9 * * *", tz="Asia/Tokyo")),
    ],
)
def test_a_schedule_means_the_same(schedule: str, expected: Cron | Every) -> None:
    assert read(manifest(schedule)).jobs[0].schedule == expected


@pytest.mark.parametrize(
    "schedule", ["0 0 * * 7", "0 22-4 * * *", "* * * *", "@reboot", "0 0 L * *", ""]
)
def test_an_impossible_schedule_is_reported(schedule: str) -> None:
    found = read([manifest(schedule), manifest()])
    (note,) = notes_of(found)
    assert note.startswith("jobs.yaml:1: left out, CronJob work: ")
    assert len(found.jobs) == 1


def test_an_invalid_number_is_reported() -> None:
    found = read(manifest(startingDeadlineSeconds="60", suspend="no"))
    assert [note.partition(": ")[2] for note in notes_of(found)] == [
        "spec.startingDeadlineSeconds: expected a number, got '60'",
        "suspend: expected true or false, got 'no'",
    ]


SPEC = ("spec",)
JOB = (*SPEC, "jobTemplate", "spec")
POD = (*JOB, "template", "spec")


def with_field(where: Sequence[str], name: str, value: object) -> dict[str, Any]:
    document = place = manifest()
    for each in where:
        place = place[each]
    place[name] = value
    return document


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (SPEC, "startingDeadlineSeconds"),
        (JOB, "activeDeadlineSeconds"),
        (POD, "terminationGracePeriodSeconds"),
    ],
)
@pytest.mark.parametrize("number", [-1, 10**30])
def test_seconds_that_no_duration_has_leave_the_job_out(
    where: Sequence[str], name: str, number: int
) -> None:
    (note,) = notes_of(found := read(with_field(where, name, number)))
    assert found.jobs == []
    assert note.startswith(f"jobs.yaml:1: left out, CronJob work: {name}: expected a ")


@pytest.mark.parametrize(
    ("where", "key"),
    [((), "extra"), (SPEC, "extra"), (JOB, "podFailurePolicy"), (POD, "affinity")],
)
def test_unknown_fields_are_reported(where: Sequence[str], key: str) -> None:
    (note,) = notes_of(read(with_field(where, key, {"a": 1})))
    assert f"{key}: " in note


def test_a_schedule_that_never_fires_is_a_task() -> None:
    found = read(manifest("0 0 30 2 *"))
    assert [job.schedule for job in found.jobs] == [None]
    assert notes_of(found) == ["jobs.yaml:6: " + BY_HAND]


def test_equivalent_fields_are_carried_over() -> None:
    job = job_of(KINDS["cronjob"](), "postgres-backup")
    assert job.schedule == Cron("30 2 * * *", tz="Europe/Berlin", catch_up="skip", grace="200s")
    assert job.retry == Retry(2, initial="10s", multiplier=2, maximum="6m", jitter=0)
    assert job.timeout == timedelta(minutes=20)
    assert job.action == Command(
        [
            "/bin/sh",
            "-c",
            'pg_dump "$DATABASE" > dump-$(date +%F).sql\nfind . -mtime +14 -delete\n',
        ],
        environment={"KEEP": "14", "DATABASE": "shop-14"},
        folder="/backup",
        grace=timedelta(minutes=1),
    )
    assert not job.paused
    assert job_of(KINDS["cronjob"](), "mixed-days").paused


def test_without_limits_a_job_has_those_of_kubernetes() -> None:
    (job,) = read(manifest()).jobs
    assert job.retry.retries == 6
    assert job.timeout is None
    assert job.schedule == Cron("0 0 * * *")  # one that was missed is run late


def test_fields_left_out_are_reported_with_their_line() -> None:
    notes = dict(note.split(": ", 1) for note in notes_of(KINDS["cronjob"]()))
    lines = [int(place.removeprefix("jobs.yaml:")) for place in notes]
    assert lines == [1, 22, 27, 29, 46, 49, 51, 53, 55, 57, 68, 70, 73, 92, 99, 101]
    assert notes["jobs.yaml:46"] == "PGPASSWORD is from a secretKeyRef: the processor needs it"
    assert notes["jobs.yaml:1"] == "left out, as it is no CronJob: ConfigMap shop"


def test_a_container_without_a_command_is_reported() -> None:
    env = [{"name": "WHAT", "value": "all"}]
    job, notes = of_container(command=[], args=["poll", "--$(WHAT)"], env=env)
    assert isinstance(job.action, Unknown)
    assert "shop:1" in job.action.why
    assert "with arguments ['poll', '--all'], env {'WHAT': 'all'}" in job.action.why
    assert "the command is the entrypoint of shop:1" in notes[0]


def test_references_are_filled_in_as_kubernetes_does() -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}, {"name": "N", "value": 3}]
    args = ["$(B)", "$$(A)", "$(UNKNOWN)", "$(date +%F)", "$A"]
    job, notes = of_container(args=args, env=env)
    assert isinstance(job.action, Command)
    assert job.action.words == ["work", "12", "$(A)", "$(UNKNOWN)", "$(date +%F)", "$A"]
    assert job.action.environment == {"A": "1", "B": "12", "N": "3"}
    assert notes == []


def test_jobs_are_found_in_lists_and_documents() -> None:
    two = [manifest("@daily"), manifest("@hourly")]
    for text in (
        yaml.safe_dump({"kind": "CronJobList", "items": two}),
        yaml.safe_dump_all([two[0], None, two[1]]),
        json.dumps({"kind": "List", "items": two}),
    ):
        assert len(read_cronjobs(text, "jobs.yaml").jobs) == 2


def test_anchors_and_merges_are_followed() -> None:
    text = """
base: &base {timeZone: Asia/Tokyo, schedule: "@daily"}
kind: CronJob
metadata: {name: one}
spec:
  <<: *base
  schedule: "@hourly"
  jobTemplate: {spec: {template: {spec: {containers: [{command: [a]}]}}}}
"""
    (job,) = read_cronjobs(text, "jobs.yaml").jobs
    assert job.schedule == Cron("0 * * * *", tz="Asia/Tokyo")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Deployment", "jobs.yaml has no CronJob"),
        ("\na: [}", "jobs.yaml, line 2, is not YAML: expected the node content, but found '}'."),
        ("spec:\n  schedule: {{ .Values.schedule | quote }}", "helm template"),
        ("a: \0", "jobs.yaml is not YAML: unacceptable character"),
        ("a: 2024-13-01", "jobs.yaml is not YAML: month must be in 1..12"),
    ],
)
def test_an_unreadable_file_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_cronjobs(text, "jobs.yaml")


def test_a_missing_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"pip install 'rabbit-scheduler\[import\]'"):
        read_cronjobs("kind: CronJob", "jobs.yaml")
