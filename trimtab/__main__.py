"""`python -m trimtab`."""

from .cli import main

main()
