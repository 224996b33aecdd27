"""A server that speaks the protocol of Redis, and replies to each script with the same bytes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


@contextmanager
def odd_server(reply: bytes) -> Iterator[int]:
    """Run the server in a thread, and yield its port."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while command := await _read_command(reader):
                is_script = command[0].upper() in (b"EVAL", b"EVALSHA")
                writer.write(reply if is_script else b"+OK\r\n")
                await writer.drain()
        except OSError:  # the client is gone
            pass
        finally:
            writers.discard(writer)
            writer.close()

    async def stop() -> None:
        server.close()
        for writer in list(writers):
            writer.close()
        # What serves the clients ends with its connection.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*rest, return_exceptions=True)

    start = asyncio.start_server(serve, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(start, loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    try:
        count = int((await reader.readuntil(b"\r\n"))[1:])
        words = []
        for _ in range(count):
            length = int((await reader.readuntil(b"\r\n"))[1:])
            words.append((await reader.readexactly(length + 2))[:-2])
    except asyncio.IncompleteReadError:
        return []
    return words
