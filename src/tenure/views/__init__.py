"""What people are shown: pure functions from records, grants, commits and refused writes to text, tables and SVG."""
