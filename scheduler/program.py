"""The parts that serve an app over one connection: each is built once, here.

::

    broker ──► queues ──► control ──► processor
"""

from collections.abc import Sequence
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.brokers.management import management_of
from scheduler.control.beginnings import Beginnings
from scheduler.control.cancellation import Cancellation
from scheduler.control.census import Census
from scheduler.control.declaring import Declaring
from scheduler.control.doctor import Doctor
from scheduler.control.endings import Endings
from scheduler.control.fit import Fit
from scheduler.control.loops import Loops
from scheduler.control.migration import Migration
from scheduler.control.policy_watch import PolicyWatch
from scheduler.control.preparation import Preparation
from scheduler.control.processors import Processors
from scheduler.control.removal import Removal
from scheduler.control.repairs import Repairs
from scheduler.control.seeding import Seeding
from scheduler.control.status import Survey
from scheduler.control.supervision import Supervisor
from scheduler.control.timer_watch import TimerWatch
from scheduler.control.verbs import Verbs
from scheduler.processor.insight import Insight
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.lifespan import Lifespan
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.pipeline import Pipeline
from scheduler.processor.processor import ProcessedApp, Processor, Worker
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.punctuality import Punctuality
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import Executions
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.successors import Order, Successors
from scheduler.processor.threads import Threads
from scheduler.queues.failed import FailedQueues
from scheduler.queues.heads import Heads
from scheduler.queues.journal import Journal
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import Hands, RollCall
from scheduler.queues.roster import Roster
from scheduler.queues.running import Inquiry, Runs
from scheduler.queues.timers import Timers
from scheduler.tasks.registry import App, resting
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock
from scheduler.timing.lead import Lead


class Program:
    """What is in a namespace's queues, and what can be done about its loops.

    Args:
        hands: what it answers to roll calls; None: it only asks.
        runs: what it answers to those who ask what runs; None: it only asks.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        *,
        hands: Hands | None = None,
        runs: Runs | None = None,
    ) -> None:
        names, here = app.names, (app, broker)
        self.broker, self.clock = broker, clock
        self.failed = FailedQueues(broker, names, clock)
        self.lead = Lead(app.settings.longest_lead)
        self.timers = Timers(broker, names, clock, self.lead)
        self.heads = Heads(broker, names)
        self.journal = Journal(broker, names)
        self.roster = Roster(broker, names, clock)
        self.roll_call = RollCall(broker, names, hands, clock.now())
        self.inquiry = Inquiry(self.roll_call, runs)
        self.cancellation = Cancellation(self.inquiry)
        self.loops = Loops(app, self.roster)
        self.declaring = Declaring(app, broker)
        self.processors = Processors(broker, names, resting(app))
        self.fit = Fit(*here)
        self.beginnings = Beginnings(
            app.namespace, clock, self.timers, self.roster, self.roll_call, self.journal
        )
        self.survey = Survey(
            *here, clock, self.journal, self.roster, self.roll_call, self.processors
        )
        self.repairs = Repairs(app, self.roster, self.beginnings)
        self.endings = Endings(app.namespace, self.beginnings)
        self.removal = Removal(*here, self.failed, self.beginnings)
        self.seeding = Seeding(
            app,
            clock,
            self.roster,
            self.beginnings,
            self.survey,
            self.repairs,
            self.removal,
            self.declaring,
            self.fit,
            Migration(*here, self.fit),
        )
        self.policy_watch = PolicyWatch(*here, management_of(app.settings))
        self.timer_watch = TimerWatch(*here, clock, self.declaring)
        self.verbs = Verbs(*here, clock, self.beginnings, self.survey)
        self.doctor = Doctor(
            *here,
            self.survey,
            self.loops,
            self.roll_call,
            self.fit,
            self.timer_watch,
            self.policy_watch,
        )


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
    """A processor of an app, to be run in this event loop.

    Args:
        tasks: the tasks to work on.
        concurrency: how many runs may go on at once, over all tasks.
        grace: how long runs may take to finish once it is stopped, before they are cancelled.
        supervises: whether it takes its part in supervision.
    """
    emit, names = app.events.emit, app.names
    shutdown, turns = Shutdown(), LoopTurns(listing := Listing())
    lifespan = Lifespan(app, app.lifespan, shutdown)
    threads = Threads(app.settings.threads, shutdown)
    executions = Executions(clock, shutdown, lifespan, app.around_runs, threads, concurrency)
    insight = Insight(executions, app.events)
    program = Program(app, broker, clock, hands=turns, runs=insight)
    publisher = PatientPublisher(shutdown, emit)
    supervises_with = supervisor(program, app, clock, listing) if supervises else None
    worked_on = (*tasks, supervises_with.task) if supervises_with else tuple(tasks)
    knowledge = Knowledge(names, program.roster, program.roll_call, listing, emit)
    recognition = Recognition(
        knowledge,
        turns,
        program.journal,
        program.roll_call,
        program.timers,
        program.endings,
        publisher,
        shutdown,
        clock,
        emit,
    )
    order = Order(program.heads, publisher)
    punctuality = Punctuality(
        broker, names, program.lead, recognition, publisher, shutdown, clock, emit
    )
    successors = Successors(
        broker,
        names,
        program.failed,
        recognition,
        publisher,
        order,
        app.escalation_hooks,
        clock,
        emit,
    )
    pipeline = Pipeline(
        app, clock, recognition, order, punctuality, successors, executions, shutdown
    )
    worker = Worker(
        app, broker, pipeline, executions, shutdown, clock, worked_on, concurrency, grace
    )
    return Processor(
        app,
        broker,
        clock,
        worker,
        knowledge,
        _preparation(app, broker, clock),
        supervises_with,
        lifespan,
        threads,
        tasks,
    )


def supervisor(program: Program, app: App, clock: Clock, listing: Listing) -> Supervisor:
    """The part in supervision of a processor that has these parts.

    Args:
        listing: the roster, as it is followed.
    """
    return Supervisor(
        app,
        clock,
        listing,
        program.roster,
        program.survey,
        program.beginnings,
        program.repairs,
        program.seeding,
        program.declaring,
        Census(program.journal, clock, listing.known),
        program.endings,
        program.timer_watch,
        program.policy_watch,
    )


def _preparation(app: App, broker: Broker, clock: Clock) -> Preparation:
    # Who does not consume yet answers to no roll call: it would be counted for one that is silent.
    asking = Program(app, broker, clock)
    return Preparation(app, broker, asking.declaring, asking.seeding, asking.fit)
