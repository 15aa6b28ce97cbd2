"""`scheduler doctor`."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict

import typer

from scheduler.app import Scheduler
from scheduler.brokers.opening import nodes_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json
from scheduler.cli.tables import print_paragraph
from scheduler.control.addresses import check_addresses
from scheduler.control.doctor import Finding

MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
INDENT = 9
COMMAND = "rabbitmqctl "


def show(reference: str | None, *, as_json: bool) -> None:
    findings = asyncio.run(_findings(ready_app(reference)))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(1)


async def _findings(app: Scheduler) -> list[Finding]:
    async with connected(app) as program:
        findings = [finding async for finding in program.doctor.examine()]
    nodes = nodes_of(app.settings)
    return findings if len(nodes) == 1 else [await check_addresses(nodes), *findings]


def _print(findings: Iterable[Finding]) -> None:
    advice = ""
    for finding in findings:
        print_paragraph(f"{finding.about}: {finding.detail}", MARKS[finding.verdict], indent=INDENT)
        if finding.advice and finding.advice != advice:
            is_command = finding.advice.startswith(COMMAND)  # to be copied
            print_paragraph(finding.advice, indent=INDENT, broken=not is_command)
        advice = finding.advice
