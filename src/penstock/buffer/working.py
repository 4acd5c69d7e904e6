"""Who works on which missing annotations, for all runs of a buffer. See `ledger.work`."""

from __future__ import annotations

from collections.abc import Callable

from penstock.buffer.core import Buffer, Pending
from penstock.ledger.work import WorkBook, WorkLease, WorkRequest


class WorkDesk:
    """Hands out enrichment work. What it knows is not durable; what it looks at may not be either, so replies wait as others do."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._books: dict[str, WorkBook] = {}
        self._life = 0

    def take(self, buffer: Buffer, run: str, wanted: WorkRequest) -> Pending[WorkLease]:
        """See `WorkBook.take`."""
        lease = self._book(buffer, run).take(buffer.ledger(run), wanted, self._now())
        return Pending(lease, buffer.settled(), changed=False)

    def renew(self, buffer: Buffer, run: str, lease: str, consumer: str) -> WorkLease:
        """See `WorkBook.renew`."""
        return self._book(buffer, run).renew(lease, consumer, self._now())

    def release(self, buffer: Buffer, run: str, lease: str, consumer: str) -> Pending[bool]:
        """See `WorkBook.release`."""
        released = self._book(buffer, run).release(lease, consumer)
        return Pending(released, buffer.settled(), changed=released)

    def expire(self) -> list[WorkLease]:
        """End the leases whose time is over, in all runs."""
        return [lease for book in self._books.values() for lease in book.expire(self._now())]

    def later(self, seconds: float) -> None:
        """See `WorkBook.later`."""
        for book in self._books.values():
            book.later(seconds)

    def _book(self, buffer: Buffer, run: str) -> WorkBook:
        buffer.ledger(run)
        if self._life != buffer.lives:
            self._life = buffer.lives
            for book in self._books.values():
                book.look_again()
        return self._books.setdefault(run, WorkBook())
