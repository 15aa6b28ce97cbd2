"""Spans: one of each call that is sent and each run, connected through every hop."""

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from scheduler import Retry, Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.errors import NotSent
from scheduler.protocol.messages import Message
from scheduler.tracing import instrument
from tests.stage import Stage

MAIL, BEAT = "test.v1.processor.mail", "test.v1.processor.beat"


class Traced:
    """The spans of an app, which are kept."""

    def __init__(self, app: Scheduler) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        instrument(app, self.provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Those that have ended, in the order in which they began."""
        return sorted(self._kept.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def traced(stage: Stage) -> Traced:
    return Traced(stage.app)


def context_of(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def about(span: ReadableSpan, *names: str) -> list[object]:
    return [dict(span.attributes or {}).get(f"scheduler.{name}") for name in names]


async def test_a_call_with_its_retries_is_one_trace(stage: Stage, traced: Traced) -> None:
    @stage.app.task(retry=Retry(2, delays=["5s", "1m"], jitter=0))
    async def mail(n: int) -> None:
        with traced.provider.get_tracer("mine").start_as_current_span(f"write {n}"):
            if len(traced.named(f"process {MAIL}")) == 0:
                raise ValueError("boom")

    await stage.seed()
    async with stage.processor():
        await mail.send_later("10m", 7)
        await asyncio.sleep(700)
    (sent,) = traced.named(f"send {MAIL}")
    first, second = traced.named(f"process {MAIL}")
    inner = traced.named("write 7")
    assert {context_of(span).trace_id for span in traced.spans} == {context_of(sent).trace_id}
    assert parent_of(sent) is None
    runs = (first, second)
    assert [parent_of(run) for run in runs] == [context_of(sent).span_id] * 2
    assert [parent_of(span) for span in inner] == [context_of(run).span_id for run in runs]
    assert [sent.kind, first.kind] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
    told = [about(run, "attempt", "ending") for run in runs]
    assert told == [[1, "retried"], [2, "succeeded"]]
    statuses = [run.status.status_code for run in runs]
    assert statuses == [StatusCode.ERROR, StatusCode.UNSET]
    assert first.status.description == "ValueError: boom"
    assert [event.name for event in first.events] == ["exception"]
    ids = [(span.attributes or {})["messaging.message.id"] for span in (sent, first, second)]
    assert ids == [ids[0]] * 3


async def test_a_call_of_a_run_belongs_to_its_trace(stage: Stage, traced: Traced) -> None:
    @stage.app.task()
    async def mail() -> None: ...

    @stage.app.periodic(every="1m")
    async def beat() -> None:
        await asyncio.gather(mail.send(), mail.send())

    await stage.seed()
    async with stage.supervised():
        await asyncio.sleep(70)
    assert await stage.history("_supervision")
    assert {span.name for span in traced.spans if "supervision" in span.name} == set()
    (run,) = traced.named(f"process {BEAT}")
    sent = traced.named(f"send {MAIL}")
    assert [parent_of(span) for span in sent] == [context_of(run).span_id] * 2
    assert {parent_of(span) for span in traced.named(f"process {MAIL}")} == {
        context_of(span).span_id for span in sent
    }


async def test_a_run_of_a_loop_links_to_the_one_before_it(stage: Stage, traced: Traced) -> None:
    @stage.app.periodic(every="1m", retry=Retry(1, delays=["1s"], jitter=0))
    async def beat() -> None:
        if len(traced.spans) == 1:
            raise ValueError("boom")

    await stage.seed()
    async with stage.processor():
        await asyncio.sleep(65)
        # What an operator does to the token in between leaves the link where it was.
        (loop,) = stage.app.loops.values()
        await stage.verbs.pause(loop)
        await stage.verbs.resume(loop)
        await asyncio.sleep(120)
    runs = traced.named(f"process {BEAT}")
    assert [about(run, "loop", "seq", "attempt", "ending") for run in runs] == [
        ["beat", 0, 1, "succeeded"],
        ["beat", 1, 1, "retried"],
        ["beat", 1, 2, "succeeded"],
    ]
    assert len({context_of(run).trace_id for run in runs}) == len(runs)
    linked = [[link.context.span_id for link in run.links] for run in runs]
    assert linked == [[], *([context_of(run).span_id] for run in runs[:-1])]


@pytest.mark.parametrize(("ends", "ending"), [("abort", "returned"), ("cut", "lost")])
async def test_a_run_that_is_broken_off_says_so(
    stage: Stage, traced: Traced, ends: str, ending: str
) -> None:
    @stage.app.periodic(every="1m", timeout="1h")
    async def beat() -> None:
        await asyncio.sleep(1000)

    await stage.seed()
    async with stage.processor() as worker:
        await asyncio.sleep(70)
        if ends == "abort":
            worker.abort()
        else:
            stage.server.disconnect_all()
        await asyncio.sleep(0.001)
    run, *_ = traced.named(f"process {BEAT}")
    assert about(run, "ending") == [ending]


async def test_a_foreign_trace_continues(stage: Stage, traced: Traced) -> None:
    @stage.app.task(subscribe=[("orders", "order.paid", "topic")])
    async def mail(order: bytes) -> None: ...

    await stage.seed()
    async with stage.processor():
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        for message in (Message(b"1", headers), Message(b"2", {"traceparent": "?"})):
            await stage.publish(message, "order.paid", "orders")
        await asyncio.sleep(1)
    first, second = traced.named(f"process {MAIL}")
    assert context_of(first).trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert parent_of(first) == 0xB7AD6B7169203331
    assert second.parent is None


async def test_a_call_that_was_not_sent_is_an_error(stage: Stage, traced: Traced) -> None:
    @stage.app.task()
    async def mail() -> None: ...

    await stage.seed()
    stage.app.outbox.use(MemoryBroker(stage.server), stage.clock)  # never opened
    with pytest.raises(NotSent):
        await mail.options(deadline="2s").send()
    assert not trace.get_current_span().get_span_context().is_valid
    (sent,) = traced.spans
    assert sent.status.status_code is StatusCode.ERROR
    assert (sent.attributes or {})["error.type"] == "NotSent"
