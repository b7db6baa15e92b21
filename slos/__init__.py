"""Service-level objectives: what was promised, whether one turn kept it, and which promise binds."""
