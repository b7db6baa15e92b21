"""The upper tail of a binomial in plain Python: how likely so many misses are, if the promise is kept.

The sum starts at the wanted number and runs away from the mean, where each term is smaller than the last, so
it takes a few dozen terms whatever n is. scipy has the same function, but a router process may import this.
"""

import math


def tail(k: int, n: int, p: float) -> float:
    """P(X >= k) for X ~ Binomial(n, p). Raises ValueError unless 0 <= k <= n and 0 < p < 1."""
    if not 0 <= k <= n or not 0.0 < p < 1.0:
        raise ValueError(f"no binomial tail for k={k}, n={n}, p={p}")
    if k == 0:
        return 1.0
    if k > n * p:
        return _sum(k, n, p)
    # P(X <= k - 1) is the upper tail of the misses counted the other way round.
    return 1.0 - _sum(n - k + 1, n, 1.0 - p)


def _sum(k: int, n: int, p: float) -> float:
    log_choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    term = total = math.exp(log_choose + k * math.log(p) + (n - k) * math.log1p(-p))
    odds = p / (1.0 - p)
    while k < n and term > total * 1e-17:
        term *= (n - k) / (k + 1) * odds
        k += 1
        total += term
    return min(1.0, total)
