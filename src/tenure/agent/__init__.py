"""Agents under a lease. Has never heard of a driver."""
