"""Connect to RabbitMQ, through aiormq."""
