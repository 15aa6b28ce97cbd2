"""Test an app in virtual time, on an embedded broker, with no set-up.

::

    from scheduler.testing import Kit, eager, simulate

    async def test_an_sms_is_tried_again_while_the_provider_is_busy(scheduler_kit: Kit):
        await send_sms.send("+12025550101", "Hello")
        await scheduler_kit.run_until_idle()   # what is due now has run
        await scheduler_kit.advance("11s")     # so much time passes, with all that happens in it
        scheduler_kit.assert_ran(send_sms, times=3)

    async def test_a_booking_sends_its_confirmation():
        with eager(app):                       # what is sent runs at once, in place
            await book("table 4")

    def test_the_report_runs_on_working_days():
        events = simulate(app, "14d", start=datetime(2026, 6, 1, tzinfo=UTC))
        assert len([e for e in events if isinstance(e, RunStarted)]) == 10

The fixture `scheduler_kit` comes with the package: it makes a kit of the app that your own fixture
`scheduler_app` returns. Without pytest, `run_virtually` runs a coroutine that opens a `Kit`.
"""

from scheduler.testing.kit import (
    DEFAULT_START,
    Kit,
    Parked,
    Ran,
    Records,
    Sent,
    VirtualTimeLoop,
    eager,
    recording,
    run_virtually,
    simulate,
)

__all__ = [
    "DEFAULT_START",
    "Kit",
    "Parked",
    "Ran",
    "Records",
    "Sent",
    "VirtualTimeLoop",
    "eager",
    "recording",
    "run_virtually",
    "simulate",
]
