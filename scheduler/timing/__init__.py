"""When: the clock, durations, rates, cron expressions, schedules. Pure."""
