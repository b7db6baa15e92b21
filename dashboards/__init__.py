"""Dashboards: what people look at, as code. Pictures, panels and pages; nothing here decides anything."""
