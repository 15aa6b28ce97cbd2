"""Taking what is at the head of a queue, over a channel that is kept for the next who gets."""

from scheduler.brokers.amqp.asking import calling
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.deliveries import DeliveryChannel
from scheduler.brokers.contract import Delivery


async def get(connection: Connection, queue: str) -> Delivery | None:
    """Take what is at the head of a queue, if there is something."""
    session = await connection.ready()
    lease = session.borrow_getter()
    try:
        with calling(connection, session, lease):
            channel = await lease.channel()
            taken = await channel.get(queue)
    except BaseException:
        session.return_getter(lease)
        raise
    if taken is None:
        session.return_getter(lease)
        return None
    assert lease.lost is not None
    deliveries = DeliveryChannel(
        connection, channel, lease.lost, lambda: session.return_getter(lease)
    )
    return deliveries.delivery(taken, queue)
