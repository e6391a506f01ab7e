"""One run per installed distribution: an agent reads its metadata and licence files and says under which licence it is.

`python -m examples.license_audit` from the root of the repository; docs/license-audit.md tells what it shows.
"""
