"""Open the queues and streams of a namespace, over one connection."""

from scheduler.brokers.contract import Broker
from scheduler.queues.failed import FailedQueues
from scheduler.queues.heads import Heads
from scheduler.queues.history import History
from scheduler.queues.journal import Journal
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import Hands, RollCall
from scheduler.queues.roster import Roster
from scheduler.queues.timers import Lead, Timers
from scheduler.tasks.loops import App, aliases_of
from scheduler.timing.moments import Clock


class Namespace:
    """Hold the queues and streams of an app, each built once for a connection.

    Args:
        hands: its state for answers to roll calls; None: it only asks.
        listing: receives the roster; None: a new one.

    Attributes:
        is_processor: whether it answers roll calls.
    """

    def __init__(
        self,
        app: App,
        broker: Broker,
        clock: Clock,
        hands: Hands | None = None,
        listing: Listing | None = None,
    ) -> None:
        names = app.names
        self.app, self.broker, self.clock = app, broker, clock
        self.is_processor = hands is not None
        aliases = aliases_of(app)
        self.failed = FailedQueues(broker, names, clock, aliases)
        self.timers = Timers(broker, names, clock, Lead(app.settings.longest_lead))
        self.heads = Heads(broker, names)
        self.journal = Journal(broker, names)
        self.history = History(broker, names, aliases)
        self.roster = Roster(broker, names, clock, listing, app.loops.keys(), aliases)
        self.roll_call = RollCall(broker, names, hands, clock.now())
