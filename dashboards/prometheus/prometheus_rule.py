"""Write the rules as a PrometheusRule, for clusters with the Prometheus Operator.

Run: python dashboards/prometheus/prometheus_rule.py     after every change of dashboards/prometheus/rules
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

RULES: Final = Path(__file__).resolve().parent / "rules"
WRITTEN: Final = RULES.parents[2] / "examples" / "kubernetes" / "prometheus" / "rules.yaml"
HEAD: Final = """\
# dashboards/prometheus/rules as one object. Made by dashboards/prometheus/prometheus_rule.py: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: rankwatch
  labels: {app.kubernetes.io/name: rankwatch-monitor} # and those that your Prometheus selects by
spec:
  groups:
"""


def prometheus_rule() -> str:
    """The object as YAML: the groups of all files, with their comments, two spaces further in."""
    groups = [path.read_text().partition("\ngroups:\n")[2] for path in sorted(RULES.glob("*.yml"))]
    return HEAD + "".join(f"  {line}" if line.strip() else line for each in groups for line in each.splitlines(True))


if __name__ == "__main__":
    WRITTEN.write_text(prometheus_rule())
