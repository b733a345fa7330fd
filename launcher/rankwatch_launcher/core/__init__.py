"""What a launcher decides about one attempt. Pure: no clock, no I/O, no torch; time arrives with the events.

Enters: :mod:`~rankwatch_launcher.core.events`. Leaves: :mod:`~rankwatch_launcher.core.effects`, which
:mod:`rankwatch_launcher.shell` carries out. Open :mod:`~rankwatch_launcher.core.step` first.
"""
