"""The tests; a package, so that tests/router can never be taken for the package router."""
