"""Grafana dashboards as Python; ``dashboards/build.py`` writes them to ``dashboards/*.json``."""
