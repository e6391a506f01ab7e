"""What every test may ask for."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio, unless a test asks for trio by name."""
    return "asyncio"
