"""Metrics for Prometheus: a listener that counts and measures the events of an app.

========================================  =========  ===========================================
metric, and what tells its series apart   kind       says
========================================  =========  ===========================================
scheduler_runs_total (outcome)            counter    runs that ended: succeeded, retried,
                                                     escalated, stopped, skipped, cancelled, lost,
                                                     returned
scheduler_attempts_total                  counter    runs that started
scheduler_running                         gauge      runs that are going on
scheduler_run_duration_seconds            histogram  how long a run took
scheduler_hatch_delay_seconds             histogram  from when a message was due until the broker
                                                     handed it to the queue of its task
scheduler_ready_delay_seconds             histogram  from there until a processor had it
scheduler_start_delay_seconds             histogram  from there until its run started
scheduler_last_success_timestamp_seconds  gauge      when a run last succeeded
scheduler_next_due_timestamp_seconds      gauge      when the next run is due
scheduler_paused_timestamp_seconds        gauge      when a run last left its loop paused; it is so
                                                     for as long as no run is due later
scheduler_period_seconds                  gauge      from the last tick to the next
scheduler_lead_seconds                    gauge      how long before it was due the last message
                                                     left the broker's timers, to start on the dot
scheduler_escalations_total               counter    runs that failed for the last time
scheduler_ticks_skipped_total (reason)    counter    late, overrun
scheduler_repairs_total (kind)            counter    lost, doubled, parked, adopted
scheduler_tokens_superseded_total         counter    tokens acked without a run, by reason: void,
                                                     settled
scheduler_messages_early_total (reason)   counter    messages that came before their time and went
                                                     back: expired, maxlen, unrouted, early
scheduler_parked_messages_total (reason)  counter    what processors put into failed queues
scheduler_publish_confirm_seconds         histogram  how long the broker took to confirm a message
scheduler_roster_lag_seconds              histogram  from when an epoch of a loop began until this
                                                     processor had heard of it from the roster
scheduler_stored_messages_total           counter    messages that this process could not send and
                                                     stored
scheduler_unsent_messages                 gauge      messages that are stored now, by whichever
                                                     process; only with a fallback
scheduler_event_loop_blocked_seconds      histogram  how long a task held up the event loop, where
                                                     that was a second and more
scheduler_reconnects_total                counter    connections that were lost and made again
========================================  =========  ===========================================

All have the label `namespace`; all but the last seven have `task` and `loop`, parked messages have
`task`. The loop of a one-off call is empty. Loops with a key are counted together, as `{task}.*`,
because there may be any number of them; the gauges then tell of the one that ran last.

A processor tells what it saw itself: of its timestamps, the highest over all processors holds.

RabbitMQ, from 3.10 to 4.3, tells in whole seconds when a wait ended. So the hatch delay is at least
what is measured, and up to a second of it is found in the ready delay; both compare the clocks of
different machines. There is no hatch delay of what did not wait in RabbitMQ, and no ready delay of
what was redelivered.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any
from wsgiref.types import WSGIApplication

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    make_wsgi_app,  # pyright: ignore[reportUnknownVariableType]
)
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
from scheduler.timing.clock import Clock, SystemClock
from scheduler.timing.once import Once
from scheduler.timing.schedules import Every, Schedule

OUTCOMES = (*(ending.value for ending in Ending), "lost", "returned")
SKIPPED = ("late", "overrun")
REPAIRS = ("lost", "doubled", "adopted")
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 300, 600, 1800, 3600)
CONFIRM_BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
LABELS = ("namespace", "task", "loop")
SECOND = timedelta(seconds=1)


def instrument(app: Scheduler, clock: Clock | None = None) -> CollectorRegistry:
    """Measure an app from now on; returns the registry that holds what is measured."""
    metrics = Metrics(app, clock or SystemClock())
    app.events.listen(metrics.note, *metrics.kinds)
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    return registry


def page(registry: CollectorRegistry) -> WSGIApplication:
    """What Prometheus scrapes."""
    return make_wsgi_app(registry)  # pyright: ignore[reportUnknownVariableType]


class Spans:
    """How many spans of time were seen, by their length."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, span: timedelta) -> None:
        seconds = span.total_seconds()
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """How many were at most so long, for each bound; and their sum."""
        names = (*map(str, map(float, self._bounds)), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True)), self._sum


@dataclass(slots=True)
class Series:
    """What is measured of one loop, or of the one-off calls of a task."""

    outcomes: Counter[str]
    skipped: Counter[str]
    repairs: Counter[str]
    superseded: Counter[str] = field(default_factory=Counter[str])
    early: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    running: int = 0
    escalations: int = 0
    duration: Spans = field(default_factory=Spans)
    hatch_delay: Spans = field(default_factory=Spans)
    ready_delay: Spans = field(default_factory=Spans)
    start_delay: Spans = field(default_factory=Spans)
    succeeded_at: datetime | None = None
    ended_at: datetime | None = None
    due_at: datetime | None = None
    paused_at: datetime | None = None
    schedule: Schedule | None = None
    tick: datetime | None = None
    lead: timedelta | None = None

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
        if event.ending is not Ending.SKIPPED:  # that one never started
            self.running -= 1
            self.duration.add(event.duration)
        if event.ending is Ending.SUCCEEDED:
            self.succeeded_at = event.started_at + event.duration
        self.ended_at = event.started_at + event.duration
        if (successor := event.successor) is not None and not event.void:
            self._wait(successor)
            self.schedule, self.tick = successor.schedule, event.scheduled_at

    def break_off(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.running -= 1

    def escalate(self) -> None:
        self.escalations += 1

    def _wait(self, token: Token) -> None:
        if token.state is State.DONE:
            self.due_at = None
        elif token.state is State.PAUSED:
            # Due at no time that this processor knows: another one may see it go on.
            self.due_at = self.paused_at = self.ended_at
        else:
            self.due_at = token.due_at

    @property
    def last_success(self) -> float | None:
        return self.succeeded_at and self.succeeded_at.timestamp()

    @property
    def next_due(self) -> float | None:
        return self.due_at and self.due_at.timestamp()

    @property
    def last_paused(self) -> float | None:
        return self.paused_at and self.paused_at.timestamp()

    @property
    def period(self) -> float | None:
        if self.schedule is None or self.tick is None:
            return None
        if isinstance(self.schedule, Once):
            return None
        if isinstance(self.schedule, Every):
            return self.schedule.period / SECOND
        return (self.schedule.next_after(self.tick) - self.tick) / SECOND


NUMBERS: Sequence[
    tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[Series], float | None]]
] = (
    (CounterMetricFamily, "attempts", "Runs that started", lambda of: of.attempts),
    (
        CounterMetricFamily,
        "escalations",
        "Runs that failed for the last time",
        lambda of: of.escalations,
    ),
    (GaugeMetricFamily, "running", "Runs that are going on", lambda of: of.running),
    (
        GaugeMetricFamily,
        "last_success_timestamp_seconds",
        "When a run last succeeded",
        lambda of: of.last_success,
    ),
    (
        GaugeMetricFamily,
        "next_due_timestamp_seconds",
        "When the next run is due",
        lambda of: of.next_due,
    ),
    (
        GaugeMetricFamily,
        "paused_timestamp_seconds",
        "When a run last left its loop paused",
        lambda of: of.last_paused,
    ),
    (
        GaugeMetricFamily,
        "period_seconds",
        "From the last tick to the next",
        lambda of: of.period,
    ),
    (
        GaugeMetricFamily,
        "lead_seconds",
        "How long before it was due the last message left the broker's timers",
        lambda of: of.lead.total_seconds() if of.lead is not None else None,
    ),
)
COUNTS: Sequence[tuple[str, str, str, Callable[[Series], Counter[str]]]] = (
    ("runs", "Runs that ended", "outcome", lambda of: of.outcomes),
    ("ticks_skipped", "Ticks without a run", "reason", lambda of: of.skipped),
    ("repairs", "Loops that were repaired", "kind", lambda of: of.repairs),
    (
        "tokens_superseded",
        "Tokens that were acked without a run",
        "reason",
        lambda of: of.superseded,
    ),
    (
        "messages_early",
        "Messages that came before their time and went back to their timers",
        "reason",
        lambda of: of.early,
    ),
)
SPANS: Sequence[tuple[str, str, Callable[[Series], Spans]]] = (
    ("run_duration_seconds", "How long runs took", lambda of: of.duration),
    (
        "hatch_delay_seconds",
        "Due, until the broker handed it to the queue of its task",
        lambda of: of.hatch_delay,
    ),
    ("ready_delay_seconds", "From there until a processor had it", lambda of: of.ready_delay),
    ("start_delay_seconds", "From there until its run started", lambda of: of.start_delay),
)


SPANS_OF_NAMESPACE: Sequence[tuple[str, str, Callable[["Metrics"], Spans]]] = (
    (
        "publish_confirm_seconds",
        "How long the broker took to confirm a message",
        lambda of: of.confirms,
    ),
    (
        "roster_lag_seconds",
        "From when an epoch began until the roster told of it",
        lambda of: of.roster_lags,
    ),
    (
        "event_loop_blocked_seconds",
        "How long a task held up the event loop, where that was a second and more",
        lambda of: of.blocked,
    ),
)


class Metrics(Collector):
    """The metrics of one app: plain numbers, until somebody asks for them.

    They are written by the event loop alone, and read by the thread that answers Prometheus.
    """

    def __init__(self, app: Scheduler, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._series: dict[tuple[str, str], Series] = {}
        self._parked: Counter[tuple[str, str]] = Counter()
        self.confirms = Spans(CONFIRM_BOUNDS)
        self.roster_lags = Spans(CONFIRM_BOUNDS)
        self.blocked = Spans()
        self._reconnects = 0
        self._stored = 0
        self._connection_lost = False
        self._notes: Mapping[type[Event], Callable[[Any], None]] = {
            RunStarted: lambda event: self._of_run(event).start(event),
            RunFinished: lambda event: self._of_run(event).finish(event),
            RunLost: lambda event: self._of_run(event).break_off("lost"),
            TokenSuperseded: lambda event: self._of_run(event).superseded.update([event.reason]),
            HatchedEarly: lambda event: self._of_run(event).early.update([event.reason]),
            RunReturned: lambda event: self._of_run(event).break_off("returned"),
            Escalated: lambda event: self._of_run(event).escalate(),
            TicksSkipped: lambda event: self._of_run(event).skipped.update(
                {event.reason: event.count}
            ),
            LoopRepaired: lambda event: self._of_loop(event.loop).repairs.update([event.kind]),
            MessageParked: lambda event: self._parked.update([(event.task, event.reason)]),
            MessageConfirmed: lambda event: self.confirms.add(event.took),
            EpochHeard: lambda event: self.roster_lags.add(event.lag),
            EventLoopBlocked: lambda event: self.blocked.add(event.took),
            MessageStored: self._message_stored,
            ConnectionLost: self._disconnected,
            Connected: self._connected,
            ProcessorStarted: self._processor_started,
        }

    @property
    def kinds(self) -> Iterable[type[Event]]:
        """The events that are measured."""
        return self._notes

    def note(self, event: Event) -> None:
        """Measure an event: a listener."""
        self._notes[type(event)](event)

    def collect(self) -> Iterator[Metric]:
        """What there is to read now."""
        for family, name, text, read in NUMBERS:
            yield self._numbers(family, name, text, read)
        for name, text, label, counts in COUNTS:
            yield self._counts(name, text, label, counts)
        for name, text, spans in SPANS:
            yield self._spans(name, text, spans)
        yield from self._of_namespace()

    def _of_namespace(self) -> Iterator[Metric]:
        namespace = self._app.namespace
        parked = CounterMetricFamily(
            "scheduler_parked_messages",
            "Messages put into failed queues",
            labels=("namespace", "task", "reason"),
        )
        for (task, reason), count in tuple(self._parked.items()):
            parked.add_metric((namespace, task, reason), count)
        yield parked
        for name, text, read in SPANS_OF_NAMESPACE:
            histogram = HistogramMetricFamily(f"scheduler_{name}", text, labels=("namespace",))
            histogram.add_metric((namespace,), *read(self).read())
            yield histogram
        reconnects = CounterMetricFamily(
            "scheduler_reconnects", "Lost connections that were made again", labels=("namespace",)
        )
        reconnects.add_metric((namespace,), self._reconnects)
        yield reconnects
        stored = CounterMetricFamily(
            "scheduler_stored_messages", "Messages stored, not sent", labels=("namespace",)
        )
        stored.add_metric((namespace,), self._stored)
        yield stored
        unsent = GaugeMetricFamily(
            "scheduler_unsent_messages", "Messages that are stored now", labels=("namespace",)
        )
        if (fallback := self._app.fallback) is not None:
            try:
                unsent.add_metric((namespace,), len(fallback.read()))
            except Exception:  # StoredDelayed tells why; the other metrics are there all the same
                unsent.add_metric((namespace,), math.nan)
        yield unsent

    def _numbers(
        self,
        family: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        read: Callable[[Series], float | None],
    ) -> Metric:
        metric = family(f"scheduler_{name}", text, labels=LABELS)
        for labels, series in self._each():
            if (value := read(series)) is not None:
                metric.add_metric(labels, value)
        return metric

    def _counts(
        self, name: str, text: str, label: str, read: Callable[[Series], Counter[str]]
    ) -> Metric:
        metric = CounterMetricFamily(f"scheduler_{name}", text, labels=(*LABELS, label))
        for labels, series in self._each():
            for kind, count in tuple(read(series).items()):
                metric.add_metric((*labels, kind), count)
        return metric

    def _spans(self, name: str, text: str, read: Callable[[Series], Spans]) -> Metric:
        metric = HistogramMetricFamily(f"scheduler_{name}", text, labels=LABELS)
        for labels, series in self._each():
            metric.add_metric(labels, *read(series).read())
        return metric

    def _each(self) -> Iterable[tuple[tuple[str, str, str], Series]]:
        for (task, loop), series in tuple(self._series.items()):
            yield (self._app.namespace, task, loop), series

    def _message_stored(self, _: MessageStored) -> None:
        self._stored += 1

    def _disconnected(self, _: ConnectionLost) -> None:
        self._connection_lost = True

    def _connected(self, _: Connected) -> None:
        if self._connection_lost:  # otherwise it is the first time
            self._connection_lost = False
            self._reconnects += 1

    def _processor_started(self, event: ProcessorStarted) -> None:
        """Have the series from the start: what first appears with 1 never rose, for Prometheus."""
        for name in event.tasks:
            if self._app.tasks[name].called:
                self._series_of(name, "")
        now = self._clock.now()
        for loop in self._app.loops.values():
            if loop.id.task in event.tasks:
                series = self._of_loop(loop.id)
                series.schedule, series.tick = loop.schedule, loop.schedule.next_after(now)

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
                Counter(dict.fromkeys(OUTCOMES, 0)),
                Counter(dict.fromkeys(SKIPPED if loop else (), 0)),
                Counter(dict.fromkeys(REPAIRS if loop else (), 0)),
            )
        return series
