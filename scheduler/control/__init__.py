"""Operate on loops from outside: verbs, supervision, status, doctor."""
