"""Agreement among the launchers of a job, over torch's rendezvous store.

In: each launcher's heartbeat, its ranks' progress, requests to stop. Out: the roster of each attempt, the decision that
ends it, a common stop step, the restart budget.
Open ``decisions`` and ``membership`` (both pure) first, then ``service``; ``store`` holds every key of the store.
"""
