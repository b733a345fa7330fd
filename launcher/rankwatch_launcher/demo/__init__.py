"""``rankwatch demo``: hangs one rank of a small training run on purpose and shows what happens.

In: nothing but an installed Rankwatch with torch and the monitor. Out: a story on the terminal, and as JSON.
Open :mod:`~rankwatch_launcher.demo.command` first; what it trains is ``examples/train_gpt.py``, of which a wheel has a
copy here.
"""
