"""OpenSLO v1, in both directions, for what the two have in common.

    service, labels, alerts     kind Service: metadata.name and labels; alerts and rate in annotations
    SLO's name, description     metadata.name, spec.description
    budget by requests, 28d     budgetingMethod Occurrences, timeWindow {duration: 28d, isRolling: true}
    objective                   target; by slices timeSliceTarget
    budget by slices            budgetingMethod Timeslices: target = share of slices, timeSliceWindow = slice
    signal, limits, match       indicator.spec.ratioMetric, metricSource {type: Trimtab, spec: {signal, max, match}}
    everything else             annotations trimtab.dev/..., never openslo.com/

What has no counterpart is refused by its name, with line and column: see `reading.py`. v2alpha is not read and not
written: it is a living document.
"""

from .reading import read_openslo
from .writing import PREFIX, SOURCE_TYPE, to_openslo

__all__ = ["PREFIX", "SOURCE_TYPE", "read_openslo", "to_openslo"]
