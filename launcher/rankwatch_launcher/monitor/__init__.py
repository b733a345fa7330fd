"""The launcher's side of the monitor: finding or starting it, registering, directives, events.

In: directives by long poll. Out: registrations, events and evidence by POST; nothing in training waits for them.
Open :mod:`~rankwatch_launcher.monitor.link` first.
"""
