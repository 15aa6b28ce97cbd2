"""A processor: takes messages, runs tasks, settles."""
