"""What every test may ask for, and the closing report on the real servers that took part."""

import asyncio
import os
import signal
import tempfile
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import pytest

import tenure
import tenure.testing.contract  # before its parts are, or their assertions would fail without a word
from tenure.stores._postgres_connect import address
from tenure.stores._postgres_migrate import migrate
from tenure.testing._postgres_server import version
from tenure.testing.campaigns import room
from tenure.testing.servers import (
    REDIS7,
    REDIS8,
    REDIS_KINDS,
    VALKEY9,
    Endpoint,
    PostgresServer,
    RedisServer,
    ServerKind,
    ServerMissing,
    endpoint,
    server_section,
    start_server,
)

SESSION = os.getpid()
EXERCISED = pytest.StashKey[list[str]]()

# Processes that a test starts import the same tree as the test, in a worktree too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(tenure.__path__[0]).parent), os.environ.get("PYTHONPATH")])
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="play thousands of generated sequences, from a random seed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist is in the room of the one that reports
        _room_of_its_own(config)
    signal.signal(signal.SIGTERM, _interrupted)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that starts it in the background: children would
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignore it too, and tests that send it wait for ever
    if config.getoption("--long"):
        os.environ.setdefault("TENURE_TEST_SEQUENCES", "3000")
        os.environ.setdefault("TENURE_TEST_SEED", "random")


def _room_of_its_own(config: pytest.Config) -> None:
    """Let what a killed process of a test leaves behind stand where the end of the session removes it."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path is kept for whoever looks
    rooms = ExitStack()
    tempfile.tempdir = os.environ["TMPDIR"] = str(rooms.enter_context(room()))
    config.add_cleanup(rooms.close)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, with what was started."""
    if os.getpid() == SESSION:
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    signal.signal(signal.SIGTERM, _interrupted)  # a loop that heard it leaves the default behind


class StartRedis(Protocol):
    """The face of the fixture `start_redis`."""

    def __call__(self, kind: ServerKind, /, *, unix: bool = False, **options: str | int) -> RedisServer:
        """Start a private server; options are lines of its configuration, dashes as underscores."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio, unless a test asks for trio by name."""
    return "asyncio"


@pytest.fixture
def namespace() -> str:
    """A namespace nobody else writes to, so that tests share a server and never flush it."""
    return f"t-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def redis7(pytestconfig: pytest.Config) -> Iterator[Endpoint]:
    yield from _exercised(REDIS7, pytestconfig)


@pytest.fixture(scope="session")
def redis8(pytestconfig: pytest.Config) -> Iterator[Endpoint]:
    yield from _exercised(REDIS8, pytestconfig)


@pytest.fixture(scope="session")
def valkey9(pytestconfig: pytest.Config) -> Iterator[Endpoint]:
    yield from _exercised(VALKEY9, pytestconfig)


@pytest.fixture(scope="session")
def redis7_url(redis7: Endpoint) -> str:
    return redis7.url


@pytest.fixture(scope="session")
def redis8_url(redis8: Endpoint) -> str:
    return redis8.url


@pytest.fixture(scope="session")
def valkey_url(valkey9: Endpoint) -> str:
    return valkey9.url


@pytest.fixture(params=[kind.name for kind in REDIS_KINDS])
def redis_url(request: pytest.FixtureRequest) -> str:
    """The test runs once on each kind of server: redis7, redis8, valkey9."""
    served: Endpoint = request.getfixturevalue(request.param)
    return served.url


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """Start private servers that the test may kill, freeze and restart; they are gone when the test ends."""
    with ExitStack() as started:

        def start(kind: ServerKind, /, *, unix: bool = False, **options: str | int) -> RedisServer:
            try:
                server = start_server(
                    kind, unix=unix, options={name.replace("_", "-"): value for name, value in options.items()}
                )
            except ServerMissing as missing:
                skip_or_fail(missing)
            return started.enter_context(server)

        yield start


@pytest.fixture(scope="session")
def postgres_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a private PostgreSQL server that all tests of this process share; TENURE_TEST_POSTGRES_URL names one.

    Its schema is there. It flushes nothing to its disk, so its level is `local`.
    """
    if url := os.environ.get("TENURE_TEST_POSTGRES_URL"):
        prepare_postgres(url)
        yield url
        return
    with ExitStack() as serving:
        try:
            server = serving.enter_context(PostgresServer())
        except ServerMissing as missing:
            skip_or_fail(missing)
        prepare_postgres(server.url)
        yield server.url
        commits = asyncio.run(_commits(server.url))
        pytestconfig.stash.setdefault(EXERCISED, []).append(
            f"postgres: {version()}, {commits} transactions, from a wheel"
        )


def prepare_postgres(url: str) -> None:
    """Apply the migrations, from a test that has a loop of its own too."""
    with ThreadPoolExecutor(1) as aside:
        aside.submit(lambda: asyncio.run(migrate(address(url, {})))).result()


async def _commits(url: str) -> int:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        found = await connection.execute("SELECT sum(xact_commit)::bigint FROM pg_stat_database")
        return int((await found.fetchone() or (0,))[0])


class StartPostgres(Protocol):
    """The face of the fixture `start_postgres`."""

    def __call__(
        self, *, copy_of: PostgresServer | None = None, migrated: bool = True, **options: str | int
    ) -> PostgresServer:
        """Start a private server; options are lines of its configuration."""


@pytest.fixture(scope="class")
def start_postgres() -> Iterator[StartPostgres]:
    """Start private servers that may be killed, frozen and promoted; they are gone after the test, or the class."""
    with ExitStack() as started:

        def start(
            *, copy_of: PostgresServer | None = None, migrated: bool = True, **options: str | int
        ) -> PostgresServer:
            try:
                server = started.enter_context(PostgresServer(options=options, copy_of=copy_of))
            except ServerMissing as missing:
                skip_or_fail(missing)
            if migrated and copy_of is None:
                prepare_postgres(server.url)
            return server

        yield start


def _exercised(kind: ServerKind, config: pytest.Config) -> Iterator[Endpoint]:
    with ExitStack() as serving:
        try:
            served = serving.enter_context(endpoint(kind))
        except ServerMissing as missing:
            skip_or_fail(missing)
        yield served
        commands = int(server_section(served.url, "stats")["total_commands_processed"])
        config.stash.setdefault(EXERCISED, []).append(
            f"{kind.name}: {served.product} {served.version}, {commands} commands, from {served.source}"
        )


def skip_or_fail(missing: ServerMissing) -> NoReturn:
    """End the test for want of a server."""
    # A run that is meant to prove something may not pass by leaving a server out.
    if os.environ.get("CI") == "true":
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(str(missing))


@pytest.hookimpl(trylast=True)  # after the last fixtures are gone
def pytest_sessionfinish(session: pytest.Session) -> None:
    # A pytest-xdist process hands what it used to the one that reports.
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["exercised"] = session.config.stash.get(EXERCISED, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None) or {}
    node.config.stash.setdefault(EXERCISED, []).extend(output.get("exercised", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("real servers")
    lines = config.stash.get(EXERCISED, None) or ["none was asked for"]
    for line in sorted(lines):
        terminalreporter.line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in what a test logged: a parallel run cannot carry them to its controller."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
