"""The pin, as the control side sees it. The file is the routers' (`router/pin.py`), for they must not import this package."""

from router.pin import Pin, pin_path, read_pin, write_pin

__all__ = ["Pin", "pin_path", "read_pin", "write_pin"]
