"""Integrations of training frameworks, and replacements of other libraries' interfaces.

Enters: callbacks and hooks of a framework, or calls of an interface such as nvidia-resiliency-ext's. Leaves: sections,
steps, heartbeats and requests of the Rankwatch session. Each framework has a module or folder of its own, which is only
imported by its users; ``shared/`` holds what several of them need. Open the one of your framework first.
"""
