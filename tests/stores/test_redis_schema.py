"""The scripts and the library read the same schema of records."""

import re
from pathlib import Path

from tenure.core.run import SCHEMA
from tenure.stores import redis


def test_the_scripts_read_records_of_the_schema_that_the_library_writes() -> None:
    head = (Path(redis.__file__).parent / "lua" / "head.lua").read_text()
    assert re.findall(r"(?m)^local SCHEMA = (\d+)$", head) == [str(SCHEMA)]
