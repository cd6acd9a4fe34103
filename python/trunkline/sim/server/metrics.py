"""Counters of one server, in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections import Counter

__all__ = ["Metrics"]

_HELP = {
    "requests_total": ("counter", "Requests answered, by path and status."),
    "prompt_tokens_total": ("counter", "Prompt tokens, cached ones included."),
    "cached_tokens_total": ("counter", "Prompt tokens found in the prefix cache."),
    "generated_tokens_total": ("counter", "Tokens generated."),
    "choices_total": ("counter", "Choices generated."),
    "requests_in_flight": ("gauge", "Requests being answered."),
    "process_cpu_seconds_total": ("counter", "CPU time of this process, user and system."),
}


class Metrics:
    """What a server counts."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.prompt = 0
        self.cached = 0
        self.generated = 0
        self.choices = 0
        self.in_flight = 0

    @property
    def errors(self) -> int:
        """Requests answered with a status of 400 or more."""
        return sum(count for (_, status), count in self.requests.items() if status >= 400)

    def text(self) -> str:
        """All counters as Prometheus text; names begin with ``trunkline_sim_``."""
        values: dict[str, list[tuple[str, float]]] = {
            "requests_total": [
                (f'{{path="{path}",status="{status}"}}', count)
                for (path, status), count in sorted(self.requests.items())
            ],
            "errors_total": [("", self.errors)],
            "prompt_tokens_total": [("", self.prompt)],
            "cached_tokens_total": [("", self.cached)],
            "generated_tokens_total": [("", self.generated)],
            "choices_total": [("", self.choices)],
            "requests_in_flight": [("", self.in_flight)],
            "process_cpu_seconds_total": [("", time.process_time())],
        }
        lines = []
        for name, rows in values.items():
            kind, text = _HELP.get(name, ("counter", "Requests answered with a status of 400 or more."))
            lines += [f"# HELP trunkline_sim_{name} {text}", f"# TYPE trunkline_sim_{name} {kind}"]
            lines += [f"trunkline_sim_{name}{labels} {value}" for labels, value in rows]
        return "\n".join(lines) + "\n"
