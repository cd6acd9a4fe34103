"""The page of metrics names every metric that Prometheus is served, with its type and labels, and every bucket."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from trunkline.observability.prometheus import _SECONDS, PrometheusServer

PAGE = (ROOT / "docs/reference/metrics.md").read_text("utf-8")


def test_every_metric_of_prometheus_is_in_the_table():
    pytest.importorskip("prometheus_client")
    found = {}
    with PrometheusServer() as served:
        for family in served.registry._collector_to_names:
            name = family._name + ("_total" if family._type == "counter" else "")
            found[name] = (family._type, ", ".join(family._labelnames))
    rows = re.findall(r"^\| `(trunkline_\w+)` \| (\w+) \|([^|]*)\|", PAGE, re.MULTILINE)
    assert {name: (kind, labels.strip()) for name, kind, labels in rows} == found


def test_the_buckets_are_those_of_the_histograms():
    (told,) = re.findall(r"^Buckets of all histograms: (.*) s\.$", PAGE, re.MULTILINE)
    assert tuple(map(float, told.split(", "))) == _SECONDS
