"""The audit as a kind of an app: `tenure worker examples.license_audit.app:app` serves it."""

from __future__ import annotations

from examples.license_audit.agents import Settings, make_agent
from tenure.app import App

MAX_CRASHES = 100
"""Far above the default: under --chaos it is not the run that kills its worker."""

app = App()
app.agent(make_agent(Settings.of_environment()), max_crashes=MAX_CRASHES)
