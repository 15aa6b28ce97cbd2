"""Implement RabbitMQ's rules in this process."""
