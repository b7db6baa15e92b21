"""The emulated fleet behind vLLM's HTTP, in real time: the same engines that the simulator runs in virtual time."""

from .run import FaultPlan, PortInUse, RunningFleet, main_loop, serve

__all__ = ["FaultPlan", "PortInUse", "RunningFleet", "main_loop", "serve"]
