"""The law, pure: values in, values out. Knows no clock, no chance, no I/O and no driver."""
