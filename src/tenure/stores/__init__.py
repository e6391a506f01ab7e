"""The stores: each one small file that decides and applies a change in one atomic step."""
