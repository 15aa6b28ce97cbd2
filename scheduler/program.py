"""Build the parts that serve an app over one connection, each once.

::

    broker ──► queues ──► control ──► processor
"""

from collections.abc import Sequence
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.beginnings import Beginnings
from scheduler.control.doctor import Doctor
from scheduler.control.installation import Installation
from scheduler.control.loops import Loops
from scheduler.control.seeding import Seeding
from scheduler.control.status import Survey
from scheduler.control.supervision import Supervisor
from scheduler.control.timer_watch import TimerWatch
from scheduler.control.verbs import Cancellation, Endings, Removal, Verbs
from scheduler.middleware import Lifespan
from scheduler.processor.call_reporter import CallReporter
from scheduler.processor.escalation import Escalation
from scheduler.processor.insight import Insight
from scheduler.processor.intake import Order
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.pipeline import Pipeline, Punctuality
from scheduler.processor.processor import ProcessedApp, Processor, Worker
from scheduler.processor.recognition import LoopTurns, PatientPublisher, Recognition
from scheduler.processor.runs import Executions
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.processor.verification import Verification
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.queues.roll_call import Hands
from scheduler.queues.running import Inquiry, Runs
from scheduler.tasks.loops import App, aliases_of
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.moments import Clock


class Program(Namespace):
    """Combine the queues of a namespace with the operations on its loops.

    Args:
        hands: the state for answers to roll calls; None: it only asks.
        runs: the runs for answers to questions; None: it only asks.
        listing: receives the roster; None: a new one.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        *,
        hands: Hands | None = None,
        runs: Runs | None = None,
        listing: Listing | None = None,
    ) -> None:
        super().__init__(app, broker, clock, hands, listing)
        self.inquiry = Inquiry(self.roll_call, runs)
        self.cancellation = Cancellation(self.inquiry)
        self.loops = Loops(app, self.roster)
        self.installation = Installation(self)
        self.beginnings = Beginnings(self)
        self.survey = Survey(self)
        self.endings = Endings(app.namespace, self.beginnings)
        self.removal = Removal(app, self.roster, self.installation, self.beginnings)
        self.seeding = Seeding(self, self.beginnings, self.survey, self.removal, self.installation)
        self.timer_watch = TimerWatch(self)
        self.verbs = Verbs(self, self.beginnings, self.survey)
        self.doctor = Doctor(self, self.survey, self.installation, self.timer_watch)


def processor(
    app: ProcessedApp,
    broker: Broker,
    clock: Clock,
    *,
    tasks: Sequence[TaskSpec],
    concurrency: int,
    grace: timedelta,
    supervises: bool = True,
) -> Processor:
    """Return a processor of an app, for this event loop.

    Args:
        tasks: the tasks to work on.
        concurrency: the maximum number of concurrent runs, over all tasks.
        grace: how long runs may take to finish once it is stopped, before they are cancelled.
        supervises: whether it takes part in supervision.
    """
    shutdown, turns = Shutdown(), LoopTurns(listing := Listing(aliases_of(app)))
    lifespan = Lifespan(app, app.lifespan, shutdown.begun)
    threads = Threads(app.settings.threads, shutdown)
    executions = Executions(clock, shutdown, lifespan, app.around_runs, threads, concurrency)
    insight = Insight(executions)
    program = Program(app, broker, clock, hands=turns, runs=insight, listing=listing)
    publisher = PatientPublisher(shutdown, app.events.emit)
    supervises_with = supervisor(program) if supervises else None
    worked_on = (*tasks, supervises_with.task) if supervises_with else tuple(tasks)
    knowledge = Knowledge(app.names, program.roster, program.roll_call, app.events.emit)
    verification = Verification(program, knowledge, shutdown)
    recognition = Recognition(program, knowledge, verification, turns, program.endings, publisher)
    order = Order(program.heads, publisher)
    punctuality = Punctuality(program, recognition, shutdown)
    escalation = Escalation(program, recognition, app.escalation_hooks, shutdown)
    pipeline = Pipeline(program, recognition, order, punctuality, escalation, executions, shutdown)
    worker = Worker(pipeline, worked_on, grace)
    reporter = CallReporter(program.history, app.tasks, clock)
    # A processor that does not consume yet answers no roll call: it would count as silent.
    seeding = Program(app, broker, clock).seeding
    return Processor(app, worker, reporter, seeding, supervises_with)


def supervisor(program: Program) -> Supervisor:
    """Return the supervision of a processor with these parts."""
    return Supervisor(
        program,
        program.survey,
        program.beginnings,
        program.seeding,
        program.installation,
        program.timer_watch,
        program.endings,
    )
