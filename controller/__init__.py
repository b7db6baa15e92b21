"""The feedback controller: tallies in, policies out. Pure parts; the scheduler and the store are the shell."""
