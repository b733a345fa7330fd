"""What a person should do about a job, decided once when it is read: :func:`.playbook.advice` is the way in.

A :class:`.situation.Situation` holds what the rules look at, the rules of :mod:`.playbook` are tried in their order,
and the first that applies makes the one :class:`.record.Advice`; list, page, terminal and webhook show its parts.
"""
