"""Timing that all peers share: medians, as `brine bench` takes them."""
import statistics
import time

import torch


def median_ms(run, seconds, warm_up=1):
    """Median milliseconds of run() over at least five runs and `seconds`, after `warm_up` that do
    not count."""
    for _ in range(warm_up):
        run()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def cuda_median_ms(run, seconds):
    def finished():
        run()
        torch.cuda.synchronize()

    return median_ms(finished, seconds, warm_up=3)
