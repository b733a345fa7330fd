"""The monitor: receives telemetry of all ranks, detects hangs and stragglers, and directs the launchers."""
