"""Stand-ins for public data sets of chat that cannot be shipped, by their published statistics.

    WILDCHAT  multi-turn conversations of WildChat as the paper samples them. Target: whole prompt of a later turn
              mean 2,110 and P90 4,745 tokens, answers 342 on average, 3.08 turns. The paper's own numbers, read
              from its Figure 5 and B.6: about 2,200, P90 5,115, 357, 3.1.
    SHAREGPT  multi-turn conversations of ShareGPT in the usual split at 2,048 tokens. Target: new tokens of a
              later turn P50 16, P90 86, mean 44; answers P50 249, P90 523, mean 271; context before a later turn
              P50 739, P90 1,481; 4.4 turns. All 94,145 conversations have 3.51 turns on average (arXiv
              2512.17843, Table 1), single ones included.

Lengths are log-normal, so they have the published centres and tails and no other structure: turns of one
conversation are independent, and nobody repeats what others said. Thinking times are not published; both take
those of the mix `chat`. Tests hold every number above within 15 %. Neither data set has a system prompt.
"""

from __future__ import annotations

from .workload import CHAT, MIXES, LogNormal, Mix

_WILDCHAT_NEW = LogNormal(175, 1.28, 4, 16_000)
WILDCHAT = Mix(
    "wildchat",
    first=_WILDCHAT_NEW,
    later=((1.0, _WILDCHAT_NEW),),
    output=LogNormal(250, 0.8, 8, 2000),
    think_s=CHAT.think_s,
    turns_mean=2.715,  # with a second turn always: 2.715 + 1/2.715 = 3.08
    turns_low=2,
    turns_high=16,
    context_tokens=32_000,
)
SHAREGPT = Mix(
    "sharegpt",
    first=LogNormal(50, 1.2, 4, 1200),
    later=((0.94, LogNormal(14.5, 1.15, 3, 600)), (0.06, LogNormal(240, 0.9, 20, 1500))),
    output=LogNormal(240, 0.58, 8, 1000),
    think_s=CHAT.think_s,
    turns_mean=7.0,  # the split cuts long ones
    turns_low=2,
    turns_high=24,
    context_tokens=2048,
)
STANDINS: dict[str, Mix] = {mix.name: mix for mix in (WILDCHAT, SHAREGPT)}
ALL_MIXES: dict[str, Mix] = {**MIXES, **STANDINS}
