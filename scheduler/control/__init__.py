"""What is done about loops from outside: verbs, supervision, status, doctor."""
