"""How a server packs the bodies of steps, with lz4 and without it."""

from conftest import StartPostgres, prepare_postgres
from stores.postgres_kit import rows_of
from tenure.testing.servers import PostgresServer

# A server that was built without lz4 says so when a column is to have it, in the same words of its protocol.
REFUSING = """
CREATE FUNCTION refuse_lz4() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('tenure.journal') AND attcompression = 'l') THEN
        RAISE feature_not_supported;
    END IF;
END $$;
CREATE EVENT TRIGGER without_lz4 ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION refuse_lz4();
"""
BODY = """
SELECT attcompression::text, attstorage::text, 'toast_tuple_target=4080' = ANY(coalesce(reloptions, '{}'))
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attrelid = 'tenure.journal'::regclass AND attname = 'body'
"""
KNOWS_LZ4 = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"


async def _body_of(server: PostgresServer) -> tuple[str, str, bool]:
    ((packed, stored, target),) = await rows_of(server.url, BODY)
    return packed, stored, target


async def test_a_body_is_packed_in_its_row_by_lz4_and_without_it_not_up_to_half_a_page(
    start_postgres: StartPostgres,
) -> None:
    server = start_postgres(migrated=False)
    if (await rows_of(server.url, KNOWS_LZ4))[0][0]:
        prepare_postgres(server.url)
        assert await _body_of(server) == ("l", "m", False)
        await rows_of(server.url, "DROP SCHEMA tenure CASCADE")
        await rows_of(server.url, REFUSING)
    prepare_postgres(server.url)
    assert await _body_of(server) == ("", "x", True)
