"""Every way to write: a new one has to be redacted, or has no content and is named here."""

import re
from pathlib import Path

import tenure

PACKAGE = Path(tenure.__file__).parent
REDACTED = {
    "ledger.py": "changes without a grant, as Redaction.change makes them",
    "sending.py": "what a holder appends, as Lease.write makes it",
}
WITHOUT_CONTENT = {
    "claims.py": "claims, and grants given back with a reason of ours",
    "committer.py": "a run set aside, with a reason that Lease.quarantine redacts",
    "heartbeat.py": "renewals",
    "leader.py": "the leader's own record, and repairs",
    "looks.py": "repairs",
    "repair.py": "repairs, and the end of a time of grace",
    "retention.py": "deletions",
    "supervisor.py": "ends of the grants of a dead process",
}


def test_b120_there_is_no_other_way_to_write() -> None:
    callers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"store\.commit(_many)?\b", path.read_text())
    }
    below_the_top = {name for name in callers if not name.startswith(("cli/", "stores/", "testing/"))}
    assert below_the_top == REDACTED.keys() | WITHOUT_CONTENT.keys()
