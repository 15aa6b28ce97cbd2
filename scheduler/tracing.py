"""Trace with OpenTelemetry: a listener that makes a span of each sent call, and each run.

======================  ============  ==============================================================
span                    is in         and ends
======================  ============  ==============================================================
send {queue}            the caller's  when the broker has confirmed the call, or did not in time
process {queue}: call   the sender's  when the run ended; so does each of its retries
process {queue}: loop   its own       when the run ended; a link leads to the run before it
======================  ============  ==============================================================

Spans made by a task belong to the span of its run. The context travels in the headers of the W3C
(https://www.w3.org/TR/trace-context/), also from and to programs that do not use this package; the
attributes are those of OpenTelemetry for messaging
(https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/), and some of the package:
`scheduler.loop`, `scheduler.seq`, `scheduler.attempt`, `scheduler.redelivered`, `scheduler.ending`.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from scheduler.app import Scheduler
from scheduler.events import (
    CallNotSent,
    CallSending,
    CallSent,
    Event,
    RunFinished,
    RunLost,
    RunReturned,
    RunStarted,
)
from scheduler.protocol.messages import summary_of, trace_of
from scheduler.protocol.topology import Names
from scheduler.tasks.tasks import SUPERVISION

W3C = TraceContextTextMapPropagator()
OPERATION = "messaging.operation.name"
DESTINATION = "messaging.destination.name"
TRACED = CallSending, CallSent, CallNotSent, RunStarted, RunFinished, RunLost, RunReturned


def instrument(app: Scheduler, provider: TracerProvider | None = None) -> None:
    """Trace the sends and runs of an app from now on. Supervision is not traced.

    Args:
        provider: the destination of spans; None: the one that the program has set.
    """
    tracer = trace.get_tracer("scheduler", tracer_provider=provider)
    app.events.listen(Tracing(app.names, tracer).hear, *TRACED)


class Tracing:
    """Begin a span at one event and end it at another of the same coroutine.

    Open spans are in a context variable, so each coroutine has its own.
    """

    def __init__(self, names: Names, tracer: Tracer) -> None:
        self._names = names
        self._tracer = tracer
        self._open = ContextVar[tuple[Span, Token[Context]] | None]("open span", default=None)

    def hear(self, event: Event) -> None:
        match event:
            case CallSending():
                self._begin_sending(event)
            case CallSent():
                self._end()
            case CallNotSent():
                self._end(error=event.error)
            case RunStarted() if event.loop != SUPERVISION:
                self._begin_run(event)
            case RunFinished() if event.skipped is None and event.loop != SUPERVISION:
                self._finish_run(event)
            case RunLost():
                self._end("lost")
            case RunReturned():
                self._end("returned")
            case _:
                pass

    def _begin_sending(self, event: CallSending) -> None:
        attributes = self._attributes("send", event.task, event.message_id)
        self._begin(SpanKind.PRODUCER, attributes)
        W3C.inject(event.headers)

    def _begin_run(self, event: RunStarted) -> None:
        origin = W3C.extract(trace_of(event.headers), Context())
        attributes = self._attributes("process", event.loop.task, event.message_id) | {
            "scheduler.loop": str(event.loop),
            "scheduler.attempt": event.attempt,
            "scheduler.redelivered": event.redelivered,
        }
        if event.seq is None:
            self._begin(SpanKind.CONSUMER, attributes, within=origin)
        else:
            attributes["scheduler.seq"] = event.seq
            before = trace.get_current_span(origin).get_span_context()
            links = [Link(before)] if before.is_valid else []
            self._begin(SpanKind.CONSUMER, attributes, within=Context(), links=links)

    def _begin(
        self,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        within: Context | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        name = f"{attributes[OPERATION]} {attributes[DESTINATION]}"
        span = self._tracer.start_span(name, within, kind, attributes, links)
        before = context.attach(trace.set_span_in_context(span))
        self._open.set((span, before))

    def _finish_run(self, event: RunFinished) -> None:
        W3C.inject(event.trace)
        self._end(event.ending.value, event.error)

    def _end(self, ending: str | None = None, error: BaseException | None = None) -> None:
        if (opened := self._open.get()) is None:
            return
        span, before = opened
        self._open.set(None)
        context.detach(before)
        if ending is not None:
            span.set_attribute("scheduler.ending", ending)
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, summary_of(error)))
        span.end()

    def _attributes(self, operation: str, task: str, message_id: str) -> dict[str, AttributeValue]:
        return {
            "messaging.system": "rabbitmq",
            OPERATION: operation,
            "messaging.operation.type": operation,
            DESTINATION: self._names.processor_queue(task),
            "messaging.message.id": message_id,
        }
