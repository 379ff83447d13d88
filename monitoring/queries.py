"""Runs every query of a dashboard and of the loaded alert rules on a Prometheus; each has to find a series.

    queries.py URL DASHBOARD

Waits up to a minute for the first samples. A query without a result fails, but the alerts: they are quiet if all is well,
so what they select is queried instead.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def ask(url, path, **parameters):
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=10) as answer:
        return json.load(answer)["data"]


def expanded(expression):
    """The expression with the dashboard's variables replaced, as Grafana does."""
    values = {"$__rate_interval": "10s", "$job": ".+", "$instance": ".+"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


def main():
    url, dashboard = sys.argv[1:]
    with open(dashboard, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    queries = {f"{panel['title']}, {target['refId']}": expanded(target["expr"]) for panel in panels for target in panel["targets"]}
    rules, selected = [], {}
    deadline = time.monotonic() + 60
    while True:
        try:
            rules = [rule for group in ask(url, "rules")["groups"] for rule in group["rules"]]
            selected = {f"alert {r['name']}": re.split(r" [=><]+ ", r["query"])[0] for r in rules}
            empty = [n for n, q in (queries | selected).items() if not ask(url, "query", query=q)["result"]]
            # A rule's health is unknown before its first evaluation.
            unwell = [rule["name"] for rule in rules if rule["health"] != "ok"]
        except (urllib.error.URLError, ConnectionError):
            empty, unwell = ["prometheus does not answer yet"], []
        if not (empty or unwell) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for name in empty:
        print(f"no series: {name}", file=sys.stderr)
    for name in unwell:
        print(f"not evaluated: alert {name}", file=sys.stderr)
    print(f"{len(queries)} queries of the dashboard and {len(selected)} alerts ran, {len(empty)} without a series")
    sys.exit(bool(empty or unwell))


if __name__ == "__main__":
    main()
