"""The bar of the simulated histories, in its short form: two thousand, in two halves that may run side by side."""

import re

import pytest

from tenure.testing.sim.__main__ import main


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", [1, 100_001])
def test_i01_to_i22_hold_in_every_simulated_history(
    first: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = 10_000 if pytestconfig.getoption("--long") else 1000
    code = main(["--histories", str(histories), "--seed", str(first), "--processes", "1"])
    said = capsys.readouterr().out
    assert code == 0, said
    counts = {name.strip(): int(count) for name, count in re.findall(r"([a-z ]+): (\d+)", said)}
    assert re.search(rf"^{histories} of {histories} histories, 0 violations", said, re.MULTILINE), said
    few = histories // 50
    for blow in ("kill", "stop", "cut", "restart", "failover", "step", "outage"):
        assert counts[f"blow {blow}"] > few, said
    for seen in ("takeovers", "reattach landed", "commit already", "claim refused", "renew history", "renew refused"):
        assert counts[seen] > few, said
    assert counts["commit refused"] > 0, said
