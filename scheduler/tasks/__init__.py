"""What a decorator makes of a function: tasks, arguments, context, retries, outcomes."""
