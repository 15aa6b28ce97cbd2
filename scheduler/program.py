"""The parts that serve an app over one connection: each is built once, here.

::

    broker ──► queues ──► control ──► processor
"""

from collections.abc import Sequence
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.beginnings import Beginnings
from scheduler.control.cancellation import Cancellation
from scheduler.control.declaring import Declaring
from scheduler.control.doctor import Doctor
from scheduler.control.doubles import Doubles
from scheduler.control.dry_run import DryRun
from scheduler.control.endings import Endings
from scheduler.control.fit import Fit
from scheduler.control.follow_up import FollowUp
from scheduler.control.location import Locator
from scheduler.control.loops import Loops
from scheduler.control.migration import Migration
from scheduler.control.notes import Notes
from scheduler.control.preparation import Preparation
from scheduler.control.processors import Processors
from scheduler.control.removal import Removal
from scheduler.control.repairs import Repairs
from scheduler.control.seeding import Seeding
from scheduler.control.status import Survey
from scheduler.control.supervision import PATIENCE, Supervisor
from scheduler.control.verbs import Verbs
from scheduler.control.watching import Watch
from scheduler.processor.capacity import Capacity
from scheduler.processor.escalation import Escalation
from scheduler.processor.insight import Insight
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.lifespan import Lifespan
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.order import Order
from scheduler.processor.pipeline import Pipeline
from scheduler.processor.processor import ProcessedApp, Processor
from scheduler.processor.publishing import PatientPublisher
from scheduler.processor.punctuality import Punctuality
from scheduler.processor.recognition import Recognition
from scheduler.processor.runs import Executions
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.successors import Successors
from scheduler.processor.threads import Threads
from scheduler.processor.worker import Worker
from scheduler.queues.failed import FailedQueues
from scheduler.queues.hatchery import Hatchery
from scheduler.queues.heads import Heads
from scheduler.queues.journal import Journal
from scheduler.queues.roll_call import Hands, RollCall
from scheduler.queues.roster import Listing, Roster
from scheduler.queues.running import Inquiry, Runs
from scheduler.tasks.registry import App, resting
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock
from scheduler.timing.lead import Lead

OPERATORS_PATIENCE = timedelta(minutes=15)


class Program:
    """What is in a namespace's queues, and what can be done about its loops.

    Args:
        hands: what it answers to roll calls; None: it only asks.
        runs: what it answers to those who ask what runs; None: it only asks.
        patience: how long to wait for others who create tokens.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        *,
        hands: Hands | None = None,
        runs: Runs | None = None,
        patience: timedelta = OPERATORS_PATIENCE,
    ) -> None:
        names, here = app.names, (app, broker)
        self.broker, self.clock = broker, clock
        self.failed = FailedQueues(broker, names, clock)
        self.lead = Lead(app.settings.longest_lead)
        self.hatchery = Hatchery(broker, names, clock, self.failed, self.lead)
        self.heads = Heads(broker, names)
        self.journal = Journal(broker, names)
        self.roster = Roster(broker, names, clock)
        self.roll_call = RollCall(broker, names, hands, clock.now())
        self.inquiry = Inquiry(self.roll_call, runs)
        self.cancellation = Cancellation(self.inquiry)
        self.loops = Loops(app, self.roster)
        self.declaring = Declaring(app, broker)
        self.processors = Processors(broker, names, resting(app))
        self.locator = Locator(broker, names, self.hatchery, self.roll_call, self.processors)
        self.fit = Fit(*here)
        begins = self.hatchery, self.roster
        self.beginnings = Beginnings(clock, *begins, self.roll_call, self.declaring)
        repairs = self.declaring, *begins, self.locator, self.beginnings, patience
        self.repairs = Repairs(app, *repairs)
        self.removal = Removal(*here, clock, *begins, self.failed, self.beginnings, patience)
        declares = self.declaring, self.fit, Migration(*here, self.fit)
        self.seeding = Seeding(
            app, clock, *begins, self.beginnings, self.repairs, self.removal, *declares, patience
        )
        self.dry_run = DryRun(*here, clock, *begins, self.fit)
        self.verbs = Verbs(*here, clock, *begins, self.beginnings, patience)
        self.survey = Survey(app, clock, self.journal, self.roster, self.locator)
        self.watch = Watch(clock, self.survey, self.journal, self.locator)
        self.doctor = Doctor(app, broker, self.survey, self.loops, self.locator, self.fit)


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
    shutdown, turns = Shutdown(), LoopTurns(listing := Listing())
    lifespan = Lifespan(app, shutdown)
    threads = Threads(app.settings.threads, shutdown)
    executions = Executions(clock, shutdown, lifespan, app.around_runs, threads)
    insight = Insight(executions, app.events)
    program = Program(app, broker, clock, hands=turns, runs=insight, patience=PATIENCE)
    publisher = PatientPublisher(shutdown, app.events.emit)
    supervises_with = supervisor(program, app, broker, clock, listing) if supervises else None
    worked_on = (*tasks, supervises_with.task) if supervises_with else tuple(tasks)
    knowledge = Knowledge(app.names, program.roster, program.roll_call, listing, app.events.emit)
    recognition = _recognition(program, knowledge, turns, publisher, shutdown, clock, app)
    room = Capacity(concurrency, app.settings.threads), executions
    pipeline = _pipeline(
        program, app, broker, clock, shutdown, turns, *room, recognition, publisher
    )
    worker = Worker(app, broker, pipeline, *room, shutdown, clock, worked_on, concurrency, grace)
    return Processor(
        app,
        broker,
        clock,
        worker,
        knowledge,
        recognition,
        _preparation(app, broker, clock),
        supervises_with,
        FollowUp(app, listing, program.repairs),
        lifespan,
        threads,
        tasks,
    )


def supervisor(
    program: Program, app: App, broker: Broker, clock: Clock, listing: Listing
) -> Supervisor:
    """The part in supervision of a processor that has these parts.

    Args:
        listing: the roster, as it is followed.
    """
    return Supervisor(
        app,
        broker,
        clock,
        listing,
        program.locator,
        program.repairs,
        program.seeding,
        program.declaring,
        Doubles(program.journal, clock),
        Notes(program.roster, listing, app.namespace, clock),
        Endings(app, listing, program.removal, clock),
    )


def _preparation(app: App, broker: Broker, clock: Clock) -> Preparation:
    # Who does not consume yet answers to no roll call: it would be counted for one that is silent.
    asking = Program(app, broker, clock, patience=PATIENCE)
    return Preparation(app, broker, asking.declaring, asking.seeding, asking.fit)


def _recognition(
    program: Program,
    knowledge: Knowledge,
    turns: LoopTurns,
    publisher: PatientPublisher,
    shutdown: Shutdown,
    clock: Clock,
    app: App,
) -> Recognition:
    return Recognition(
        knowledge,
        turns,
        program.journal,
        program.roll_call,
        program.hatchery,
        publisher,
        shutdown,
        clock,
        app.events.emit,
    )


def _pipeline(
    program: Program,
    app: ProcessedApp,
    broker: Broker,
    clock: Clock,
    shutdown: Shutdown,
    turns: LoopTurns,
    capacity: Capacity,
    executions: Executions,
    recognition: Recognition,
    publisher: PatientPublisher,
) -> Pipeline:
    names, emit, hatchery = app.names, app.events.emit, program.hatchery
    escalation = Escalation(
        app.names, program.failed, hatchery, publisher, app.escalation_hooks, clock, emit
    )
    order = Order(program.heads, publisher)
    successors = Successors(
        broker, names, hatchery, turns, publisher, escalation, order, clock, emit
    )
    return Pipeline(
        app,
        clock,
        turns,
        capacity,
        recognition,
        order,
        Punctuality(program.lead, clock),
        escalation,
        successors,
        executions,
        shutdown,
    )
