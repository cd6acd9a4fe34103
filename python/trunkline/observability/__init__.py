"""Logging, observers, Prometheus, OpenTelemetry."""
