"""Calculate when: the clock, durations, rates, cron expressions, schedules. No I/O."""
