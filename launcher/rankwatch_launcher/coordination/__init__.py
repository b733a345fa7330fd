"""What the launchers of one job agree on, over the rendezvous store.

In: each launcher's announcements. Out: the roster of an attempt, how the attempt ended, the shared restart budget.
Open :mod:`~rankwatch_launcher.coordination.membership` (pure) first, then ``rendezvous`` and ``service``.
"""
