"""English of causes and detections, made here and nowhere else. Log, API, page, metrics and directives share it.

==============  ========================================================================================================
``causes``      why a rank is to blame, and why none is, as clauses in a tense
``sentence``    the reason of an incident: the limit that was passed, and the cause
==============  ========================================================================================================

The one line of an incident, and what a person does about it, need the incident: :mod:`.views.headline`.
"""
