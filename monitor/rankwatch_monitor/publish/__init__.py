"""What the monitor publishes: one file for each target, one signature."""
