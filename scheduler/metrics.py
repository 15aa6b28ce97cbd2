"""Measure an app for Prometheus: a listener that counts and measures its events.

All metrics have the label `namespace`, those of runs also `task` and `loop`. The loop of a one-off
call is empty. Loops with a key are counted together, as `{task}.*`, because there may be any number
of them; the gauges then show the one that ran last.

A processor reports what it saw itself: the highest of its timestamps over all processors holds.

RabbitMQ, from 3.10 to 4.3, reports in whole seconds when a wait ended. So the hatch delay is at
least the measured one, and up to a second of it counts as ready delay; both compare the clocks of
different machines. A message that did not wait in RabbitMQ has no hatch delay, and a redelivered
one no ready delay.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.app import Scheduler
from scheduler.events import (
    Connected,
    ConnectionLost,
    EpochHeard,
    Escalated,
    Event,
    EventLoopBlocked,
    HatchedEarly,
    LoopRepaired,
    MessageConfirmed,
    MessageParked,
    MessageStored,
    ProcessorStarted,
    RunEvent,
    RunFinished,
    RunLost,
    RunReturned,
    RunStarted,
    TicksSkipped,
    TokenSuperseded,
)
from scheduler.protocol.tokens import Ending, LoopId, State, Token
from scheduler.timing.moments import Clock, SystemClock
from scheduler.timing.schedules import Schedule, period_from

OUTCOMES = (*(ending.value for ending in Ending), "lost", "returned")
SKIPPED = ("late", "overrun")
REPAIRS = ("lost", "doubled", "adopted")
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 600, 1800, 3600)
CONFIRM_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
LABELS = ("namespace", "task", "loop")


def instrument(app: Scheduler, clock: Clock | None = None) -> CollectorRegistry:
    """Measure an app from now on; return the registry of its metrics."""
    metrics = Metrics(app, clock or SystemClock())
    app.events.listen(metrics.note, *metrics.kinds)
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    return registry


class Spans:
    """Count spans of time, by their length."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, span: timedelta) -> None:
        # Between clocks that differ it may be negative, and a sum that falls looks like a restart.
        seconds = max(span.total_seconds(), 0.0)
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return the number of values up to each bound, and the sum of all."""
        names = (*map(str, map(float, self._bounds)), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True)), self._sum


class Cadence(NamedTuple):
    """Hold a tick of a schedule. The period to the next tick is calculated when it is read."""

    schedule: Schedule
    tick: datetime


Value = Counter[Any] | Spans | Cadence | datetime | timedelta | float | None


@dataclass(frozen=True)
class Measure:
    """Describe a metric.

    Attributes:
        attribute: has its value; for a counter of several kinds, one for each.
        by: the labels that tell these kinds apart.
    """

    attribute: str
    family: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    says: str
    by: tuple[str, ...] = ()

    def metric(
        self, labels: Sequence[str], subjects: Iterable[tuple[Sequence[str], Any]]
    ) -> Metric:
        """Return the current values, for each subject and its labels."""
        metric: Any = self.family(f"scheduler_{self.name}", self.says, labels=(*labels, *self.by))
        for values, subject in subjects:
            value: Value = getattr(subject, self.attribute)
            match period_from(*value) if isinstance(value, Cadence) else value:
                case None:
                    pass
                case Counter() as counts:
                    for kind, count in tuple(counts.items()):
                        kinds = (kind,) if len(self.by) == 1 else kind
                        metric.add_metric((*values, *kinds), count)
                case Spans() as spans:
                    metric.add_metric(values, *spans.read())
                case datetime() as moment:
                    metric.add_metric(values, moment.timestamp())
                case timedelta() as span:
                    metric.add_metric(values, span.total_seconds())
                case number:
                    metric.add_metric(values, number)
        return metric


def counter(name: str, says: str, *by: str) -> Any:
    about = {"family": CounterMetricFamily, "name": name, "says": says, "by": by}
    if by:
        return field(default_factory=Counter[Any], metadata=about)
    return field(default=0, metadata=about)


def gauge(name: str, says: str, begin: int | None = None) -> Any:
    about = {"family": GaugeMetricFamily, "name": name, "says": says}
    return field(default=begin, metadata=about)


def histogram(name: str, says: str, bounds: tuple[float, ...] = BOUNDS) -> Any:
    about = {"family": HistogramMetricFamily, "name": name, "says": says}
    return field(default_factory=lambda: Spans(bounds), metadata=about)


def measures_of(kind: type[Any]) -> tuple[Measure, ...]:
    return tuple(Measure(each.name, **each.metadata) for each in fields(kind))


@dataclass(slots=True)
class Series:
    """Hold the measurements of one loop, or of the one-off calls of a task."""

    outcomes: Counter[str] = counter("runs", "Runs that ended", "outcome")
    attempts: int = counter("attempts", "Runs that started")
    running: int = gauge("running", "Runs in progress", 0)
    duration: Spans = histogram("run_duration_seconds", "How long runs took")
    hatch_delay: Spans = histogram(
        "hatch_delay_seconds",
        "From when a message was due until the broker moved it to the queue of its task",
    )
    ready_delay: Spans = histogram("ready_delay_seconds", "From there until a processor had it")
    start_delay: Spans = histogram("start_delay_seconds", "From there until its run started")
    succeeded_at: datetime | None = gauge(
        "last_success_timestamp_seconds", "When a run last succeeded"
    )
    due_at: datetime | None = gauge("next_due_timestamp_seconds", "When the next run is due")
    paused_at: datetime | None = gauge(
        "paused_timestamp_seconds",
        "When a run last paused its loop, which lasts until a later run is due",
    )
    cadence: Cadence | None = gauge("period_seconds", "From the last tick to the next")
    lead: timedelta | None = gauge(
        "lead_seconds",
        "How long before it was due the last message left the broker's timers, to start on time",
    )
    escalations: int = counter("escalations", "Runs that failed for the last time")
    skipped: Counter[str] = counter("ticks_skipped", "Ticks without a run", "reason")
    repairs: Counter[str] = counter("repairs", "Loops that were repaired", "kind")
    superseded: Counter[str] = counter(
        "tokens_superseded", "Tokens that were acked without a run: void, settled", "reason"
    )
    early: Counter[str] = counter(
        "messages_early",
        "Messages that came before their time and went back: expired, maxlen, unrouted, early",
        "reason",
    )

    def start(self, event: RunStarted) -> None:
        self.attempts += 1
        self.running += 1
        self.lead = event.lead
        self.start_delay.add(event.start_delay)
        if event.hatch_delay is not None:
            self.hatch_delay.add(event.hatch_delay)
        if event.ready_delay is not None:
            self.ready_delay.add(event.ready_delay)

    def finish(self, event: RunFinished) -> None:
        self.outcomes[event.ending] += 1
        if event.skipped is None:  # else it never started
            self.running -= 1
            self.duration.add(event.duration)
        if event.ending is Ending.SUCCEEDED:
            self.succeeded_at = event.started_at + event.duration
        if (successor := event.successor) is not None and not event.void:
            self._wait(successor, event.started_at + event.duration)
            self.cadence = Cadence(successor.schedule, event.scheduled_at)

    def break_off(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.running -= 1

    def _wait(self, token: Token, ended_at: datetime) -> None:
        if token.state is State.DONE:
            self.due_at = None
        elif token.state is State.PAUSED:
            # Without a due time that this processor knows: another one may have it.
            self.due_at = self.paused_at = ended_at
        else:
            self.due_at = token.due_at


@dataclass(slots=True)
class Totals:
    """Hold the measurements of a process."""

    parked: Counter[tuple[str, str]] = counter(
        "parked_messages", "Messages that processors put into failed queues", "task", "reason"
    )
    confirms: Spans = histogram(
        "publish_confirm_seconds", "How long the broker took to confirm a message", CONFIRM_BOUNDS
    )
    roster_lags: Spans = histogram(
        "roster_lag_seconds",
        "From when an epoch of a loop began until this processor had heard of it from the roster",
        CONFIRM_BOUNDS,
    )
    blocked: Spans = histogram(
        "event_loop_blocked_seconds",
        "How long a task blocked the event loop, if for a second or more",
    )
    reconnects: int = counter("reconnects", "Connections that were lost and restored")
    stored: int = counter("stored_messages", "Messages that this process could not send and stored")
    unsent: float | None = gauge(
        "unsent_messages", "Messages that are stored now, by any process; only with a fallback"
    )


OF_RUNS, OF_PROCESSES = measures_of(Series), measures_of(Totals)


class Metrics(Collector):
    """Hold the metrics of one app: plain numbers, until they are read.

    Only the event loop writes them; the thread that answers Prometheus reads them.
    """

    def __init__(self, app: Scheduler, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._series: dict[tuple[str, str], Series] = {}
        self._totals = totals = Totals()
        self._connection_lost = False
        self._notes: Mapping[type[Event], Callable[[Any], None]] = {
            RunStarted: lambda event: self._of_run(event).start(event),
            RunFinished: lambda event: self._of_run(event).finish(event),
            RunLost: lambda event: self._of_run(event).break_off("lost"),
            TokenSuperseded: lambda event: self._of_run(event).superseded.update([event.reason]),
            HatchedEarly: lambda event: self._of_run(event).early.update([event.reason]),
            RunReturned: lambda event: self._of_run(event).break_off("returned"),
            Escalated: self._escalated,
            TicksSkipped: lambda event: self._of_run(event).skipped.update(
                {event.reason: event.count}
            ),
            LoopRepaired: lambda event: self._of_loop(event.loop).repairs.update([event.kind]),
            MessageParked: lambda event: totals.parked.update([(event.task, event.reason)]),
            MessageConfirmed: lambda event: totals.confirms.add(event.took),
            EpochHeard: lambda event: totals.roster_lags.add(event.lag),
            EventLoopBlocked: lambda event: totals.blocked.add(event.took),
            MessageStored: self._message_stored,
            ConnectionLost: self._disconnected,
            Connected: self._connected,
            ProcessorStarted: self._processor_started,
        }

    @property
    def kinds(self) -> Iterable[type[Event]]:
        return self._notes

    def note(self, event: Event) -> None:
        self._notes[type(event)](event)

    def collect(self) -> Iterator[Metric]:
        namespace = self._app.namespace
        for of_run in OF_RUNS:
            series = tuple(self._series.items())
            yield of_run.metric(LABELS, (((namespace, *of), each) for of, each in series))
        self._totals.unsent = self._count_unsent()
        for of_process in OF_PROCESSES:
            yield of_process.metric(LABELS[:1], [((namespace,), self._totals)])

    def _count_unsent(self) -> float | None:
        if (fallback := self._app.fallback) is None:
            return None
        try:
            return len(fallback.read())
        except Exception:  # StoredDelayed reports why; the other metrics are not affected
            return math.nan

    def _escalated(self, event: Escalated) -> None:
        self._of_run(event).escalations += 1

    def _message_stored(self, _: MessageStored) -> None:
        self._totals.stored += 1

    def _disconnected(self, _: ConnectionLost) -> None:
        self._connection_lost = True

    def _connected(self, _: Connected) -> None:
        if self._connection_lost:  # otherwise it is the first time
            self._connection_lost = False
            self._totals.reconnects += 1

    def _processor_started(self, event: ProcessorStarted) -> None:
        """Create all series at the start: for Prometheus, one that begins with 1 never rose."""
        for name in event.tasks:
            if self._app.tasks[name].called:
                self._series_of(name, "")
        now = self._clock.now()
        for loop in self._app.loops.values():
            if loop.id.task in event.tasks:
                series = self._of_loop(loop.id)
                series.cadence = Cadence(loop.schedule, loop.schedule.next_after(now))

    def _of_run(self, event: RunEvent) -> Series:
        if event.seq is None:
            return self._series_of(event.loop.task, "")
        return self._of_loop(event.loop)

    def _of_loop(self, loop: LoopId) -> Series:
        return self._series_of(loop.task, f"{loop.task}.*" if loop.key else loop.task)

    def _series_of(self, task: str, loop: str) -> Series:
        series = self._series.get((task, loop))
        if series is None:
            series = self._series[task, loop] = Series(
                outcomes=Counter(dict.fromkeys(OUTCOMES, 0)),
                skipped=Counter(dict.fromkeys(SKIPPED if loop else (), 0)),
                repairs=Counter(dict.fromkeys(REPAIRS if loop else (), 0)),
            )
        return series
