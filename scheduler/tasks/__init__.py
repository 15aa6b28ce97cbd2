"""Define tasks: arguments, context, retries, outcomes."""
