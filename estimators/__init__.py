"""Estimators: from samples and counts to a value with bounds, without a clock and without I/O."""
