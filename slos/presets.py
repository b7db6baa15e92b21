"""Published limits by name: MLPerf Inference's TTFT and TPOT, both at the 99th percentile.

Source: MLCommons inference_policies, inference_rules.adoc (July 2026), server and interactive scenarios. They are what
a benchmark demands of a machine, not what people notice: a start, to be measured against.
"""

from dataclasses import dataclass

PERCENT = 99.0


@dataclass(frozen=True, slots=True)
class Preset:
    """Limits in milliseconds."""

    ttft_ms: float
    tpot_ms: float


PRESETS = {
    "mlperf/llama3.1-8b-server": Preset(2000, 100),
    "mlperf/llama3.1-8b-interactive": Preset(500, 30),
    "mlperf/llama2-70b-server": Preset(2000, 200),
    "mlperf/llama2-70b-interactive": Preset(450, 40),
    "mlperf/llama3.1-405b-server": Preset(6000, 175),
    "mlperf/llama3.1-405b-interactive": Preset(4500, 80),
    "mlperf/deepseek-r1-server": Preset(2000, 80),
    "mlperf/deepseek-r1-interactive": Preset(1500, 15),
    "mlperf/gpt-oss-120b-server": Preset(3000, 80),
    "mlperf/gpt-oss-120b-interactive": Preset(2000, 20),
}
