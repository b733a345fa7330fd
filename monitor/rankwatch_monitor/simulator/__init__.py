"""Scenes with known answers: simulated jobs, their faults, and how well the core found them."""
