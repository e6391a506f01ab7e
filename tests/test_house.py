import tenure


def test_public_names_are_sorted_and_importable() -> None:
    assert tenure.__all__ == sorted(tenure.__all__)
    for name in tenure.__all__:
        assert getattr(tenure, name) is not None
