"""Looks at the ranks of this node, whoever started them, and prints what it has seen: the collector of ``diagnose``.

In: processes of this node, found by their environment or below a known launcher. Out: a
:class:`~rankwatch.contract.diagnosis.NodeReport` as JSON. Reads only; needs neither torch nor numpy.
Open :mod:`~rankwatch_launcher.diagnose.collect` first, then :mod:`~rankwatch_launcher.diagnose.find`.
"""
