"""The router: which conversation, which route, which nodes, and what came of it. Pure parts; the HTTP shell
is separate."""
