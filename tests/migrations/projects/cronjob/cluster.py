"""A stand-in for a cluster, as no registry of packages has a control plane: it knows one CronJob.

It answers what kubectl asks the API server in order to get and patch that CronJob, and does with it
as its controller does (https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/, and
pkg/controller/cronjob of https://github.com/kubernetes/kubernetes): schedule, timeZone, suspend,
startingDeadlineSeconds, concurrencyPolicy Forbid and Allow, status.lastScheduleTime, status.active.
A Job is a process of this machine; one that fails is not repeated. The CronJob is there as soon as
its manifest is.
"""

import json
import subprocess
import threading
import uuid
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import yaml

from scheduler import Cron

MANIFEST = Path("cronjob.yaml")
CONFIG = Path.home() / ".kube/config"
ONE = "/apis/batch/v1/namespaces/default/cronjobs/report"
STATUS = f"{ONE}/status"
GROUP = {"groupVersion": "batch/v1", "version": "v1"}
Object = dict[str, Any]
ANSWERS: dict[str, Object] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "batch", "versions": [GROUP], "preferredVersion": GROUP}],
    },
    "/apis/batch/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "batch/v1",
        "resources": [
            {
                "name": name,
                "singularName": "cronjob" * (name == "cronjobs"),
                "namespaced": True,
                "kind": "CronJob",
                "verbs": ["get", "patch"],
                "shortNames": ["cj"] * (name == "cronjobs"),
            }
            for name in ("cronjobs", "cronjobs/status")
        ],
    },
}


class Cluster:
    """One CronJob, and the Jobs that it has made."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.cron_job: Object | None = None
        self.jobs = dict[str, subprocess.Popen[bytes]]()

    def run(self) -> None:
        tick = threading.Event()
        while not tick.wait(0.2):
            with self.lock:
                if self.cron_job is not None:
                    self.sync(self.cron_job, datetime.now(UTC))
                elif MANIFEST.exists():
                    self.apply(yaml.safe_load(MANIFEST.read_text()))

    def apply(self, manifest: Object) -> None:
        manifest["metadata"] |= {
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "creationTimestamp": stamp(datetime.now(UTC)),
            "resourceVersion": "1",
        }
        self.cron_job = manifest | {"status": {}}

    def sync(self, cron_job: Object, now: datetime) -> None:
        self.jobs = {name: job for name, job in self.jobs.items() if job.poll() is None}
        active = [{"kind": "Job", "name": name} for name in self.jobs]
        merge(cron_job["status"], {"active": active or None})
        due, spec = latest_due(cron_job, now), cron_job["spec"]
        if due is None or (spec.get("concurrencyPolicy") == "Forbid" and self.jobs):
            return
        template = spec["jobTemplate"]["spec"]["template"]["spec"]
        name = f"report-{int(due.timestamp()) // 60}"
        self.jobs[name] = subprocess.Popen(template["containers"][0]["command"])
        cron_job["status"]["lastScheduleTime"] = stamp(due)

    def patch(self, cron_job: Object, path: str, patch: Object) -> None:
        """A status goes to its subresource only, and all else to the object only."""
        allowed = {key: patch[key] for key in patch if (key == "status") is (path == STATUS)}
        merge(cron_job, allowed)
        number = int(cron_job["metadata"]["resourceVersion"]) + 1
        cron_job["metadata"]["resourceVersion"] = str(number)


def latest_due(cron_job: Object, now: datetime) -> datetime | None:
    """The last time for which there was to be a Job, if there was none yet."""
    spec = cron_job["spec"]
    if spec.get("suspend"):
        return None
    last = cron_job["status"].get("lastScheduleTime")
    since = datetime.fromisoformat(last or cron_job["metadata"]["creationTimestamp"])
    if deadline := spec.get("startingDeadlineSeconds"):
        since = max(since, now - timedelta(seconds=deadline))
    schedule, due = Cron(spec["schedule"], tz=spec.get("timeZone", "UTC")), None
    while (since := schedule.next_after(since)) <= now:
        due = since
    return due


class Answers(BaseHTTPRequestHandler):
    """What the API server is asked."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        with CLUSTER.lock:
            self.answer(CLUSTER.cron_job if path in (ONE, STATUS) else ANSWERS.get(path))

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        with CLUSTER.lock:
            found = CLUSTER.cron_job if path in (ONE, STATUS) else None
            if found is not None:
                CLUSTER.patch(found, path, body)
            self.answer(found)

    def answer(self, found: Object | None) -> None:
        missing = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def merge(into: Object, patch: Object) -> None:
    """RFC 7396, as kubectl's patches of these fields are."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), cast(Object, value))
        else:
            into[key] = value


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


CLUSTER = Cluster()
server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
CONFIG.write_text(
    json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [
                {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "users": [{"name": "me", "user": {}}],
        }
    )
)
threading.Thread(target=server.serve_forever, daemon=True).start()
CLUSTER.run()
