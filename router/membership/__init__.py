"""Which engines there are: sources tell sets of nodes, the roster makes joins, drains and leaves of them."""
