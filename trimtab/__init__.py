"""The front door: command line, wiring, calibration, simulation."""

__version__ = "0.1.0"
