"""Optional integrations, one file each; each needs its own extra."""
