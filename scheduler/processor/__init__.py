"""Process messages: take them, run tasks, settle."""
