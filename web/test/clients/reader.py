"""Reads a stream with httpx-sse, coming back with the last id, and prints each event as a line.

Usage: reader.py URL. Ends when the server says that there is nothing more (204).
"""

import json
import sys
import time

import httpx
from httpx_sse import connect_sse

# Longer than the server's heartbeat: what is silent for longer is dead.
SILENCE_S = 6.5


def main() -> None:
    url = sys.argv[1]
    last_id = ""
    pause_s = 1.0
    timeout = httpx.Timeout(10.0, read=SILENCE_S)
    # The proxies of whoever runs the tests stay out of them.
    with httpx.Client(timeout=timeout, trust_env=False) as client:
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            try:
                with connect_sse(client, "GET", url, headers=headers) as source:
                    if source.response.status_code == httpx.codes.NO_CONTENT:
                        return
                    # A proxy says so when the server is away.
                    if source.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                        source.response.raise_for_status()
                        print(json.dumps({"opened": True}), flush=True)
                        for sse in source.iter_sse():
                            if sse.retry is not None:
                                pause_s = sse.retry / 1000
                            # It hands out comments as well, as events without data.
                            if not sse.data:
                                continue
                            last_id = sse.id
                            event = {"id": sse.id, "event": sse.event, "data": sse.data}
                            print(json.dumps(event), flush=True)
            except httpx.TransportError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            time.sleep(pause_s)


if __name__ == "__main__":
    main()
