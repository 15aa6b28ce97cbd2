"""An app that has nothing to do."""

from scheduler import Scheduler

app = Scheduler("shop")
