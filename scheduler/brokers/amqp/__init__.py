"""RabbitMQ, through aiormq."""
