"""The bar of the simulated histories, in its short form: two thousand, in two halves that may run side by side."""

import re

import pytest

from tenure.testing.sim.__main__ import main


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [1, 1001])
def test_i01_to_i22_hold_in_every_simulated_history(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--histories", "1000", "--seed", str(first), "--processes", "1"])
    said = capsys.readouterr().out
    assert code == 0, said
    counts = {name: int(count) for name, count in re.findall(r"([a-z ]+): (\d+)", said)}
    assert re.search(r"^1000 of 1000 histories, 0 violations", said, re.MULTILINE), said
    for blow in ("kill", "stop", "cut", "restart", "failover", "step", "outage"):
        assert counts[f"blow {blow}"] > 50, said
    for seen in ("takeovers", "reattach landed", "commit already", "commit refused", "claim refused", "renew history"):
        assert counts[f"{seen}"] > 10, said
