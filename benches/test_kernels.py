"""Every kernel of the core beside its floor, both in one process of Rust.

What pytest-benchmark records is the time of one call of the kernel as that process measured it; the rounds of kernel
and floor alternate. `share` is the floor's time over the kernel's (1 is the machine's limit), `ratio` its inverse.
"""

from __future__ import annotations

import statistics

import pytest

import kernels
import programs

ROUNDS = 25

# What section 6 of the design asks of a core.
TARGETS = {
    "prefix/insert": ("share", ">=", 0.50),
    "prefix/longest": ("share", ">=", 0.40),
    "prefix/append": ("share", ">=", 0.60),
    "tree/intern": ("items_per_s", ">=", 4e6),
    "lanes/ones": ("ns_per_item", "<=", 1.0),
    "advantage/leaf_mean": ("items_per_s", ">=", 100e6),
    "tree/body": ("ratio", "<=", 1.5),
    "reply/logprobs": ("call_ms", "<=", 0.45),
}


class Clock:
    """The timer that pytest-benchmark reads: that of whichever kernel runs."""

    kernel: kernels.Kernel | None = None

    def __call__(self) -> float:
        return self.kernel.clock()


CLOCK = Clock()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    program = programs.build("trunkline-bench")
    metafunc.parametrize("name", kernels.names(program))


@pytest.fixture(scope="session")
def program():
    return programs.build("trunkline-bench")


@pytest.mark.benchmark(group="kernels", timer=CLOCK)
def test_kernel(benchmark, program, name: str, capsys):
    CLOCK.kernel = kernel = kernels.Kernel(program, name)
    try:
        benchmark.pedantic(kernel.measure, rounds=ROUNDS)
    finally:
        kernel.close()

    call = statistics.median(each.kernel for each in kernel.rounds)
    floor = statistics.median(each.floor for each in kernel.rounds)
    ratio = statistics.median(each.kernel / each.floor for each in kernel.rounds)
    figures = {
        "call_ms": 1e3 * call,
        "ns_per_item": 1e9 * call / kernel.items,
        "floor_ns_per_item": 1e9 * floor / kernel.items,
        "items_per_s": kernel.items / call,
        "ratio": ratio,
        "share": 1 / ratio,
    }
    benchmark.extra_info.update(figures | {"item": kernel.item, "items": kernel.items, "floor": kernel.floor})
    with capsys.disabled():
        print(f"\n{line(name, kernel, figures)}")


def line(name: str, kernel: kernels.Kernel, figures: dict[str, float]) -> str:
    """One case as people read it."""
    shown = (
        f"{name:24} {figures['ns_per_item']:10.2f} ns per {kernel.item} ({figures['items_per_s'] / 1e6:.1f} M/s), "
        f"{figures['ratio']:.2f}x its floor ({kernel.floor})"
    )
    if name not in TARGETS:
        return shown
    figure, sign, limit = TARGETS[name]
    met = figures[figure] >= limit if sign == ">=" else figures[figure] <= limit
    return f"{shown}; target {figure} {sign} {limit:g}: {'met' if met else 'NOT MET'} ({figures[figure]:.3g})"
